"""Chat, completion and generation: from a request to its answer or its stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from . import chat, journal, reply, text
from .chat import Limits, Parsing, Script
from .engine import Engine, Refused
from .http import VARY, Request, Response, Stream, json_response
from .picture import NotAPicture
from .turn import Prompt, Turn
from .wire import BadRequest, read_json, read_messages, validation

SSE = [("content-type", "text/event-stream; charset=utf-8"), VARY]

SHORTENED = 12  # tokens of content left of an answer whose end token is favoured by logit_bias

Answer = Response | Stream


class Answers:
    """The endpoints that generate, over one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.args = engine.args

    def _limits(self, body: dict[str, Any], prompt: int, wanted: int | None) -> Limits:
        """Check lengths and sampling, and return when the answer has to end."""
        context = self.engine.context
        if wanted is not None and self.args.context_length and wanted > self.args.context_length:
            raise BadRequest(
                f"max_completion_tokens is too large: {wanted}.This model supports at most {self.args.context_length} "
                "completion tokens."
            )
        temperature = body.get("temperature")
        if isinstance(temperature, int | float) and temperature < 0:
            raise BadRequest(f"temperature must be a non-negative finite number, got {float(temperature)}.")
        if prompt == 0:
            raise BadRequest("The prompt cannot be empty.")
        if prompt >= context:
            journal.raw(
                "[transformers] Token indices sequence length is longer than the specified maximum sequence length for this "
                f"model ({prompt} > {context}). Running this sequence through the model will result in indexing errors"
            )
            raise BadRequest(f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens).")
        if wanted is not None and prompt + wanted > context and not self.args.allow_auto_truncate:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total "
                f"of {prompt + wanted} tokens: {prompt} tokens from the input messages and {wanted} tokens for the completion. "
                "Please reduce the number of tokens in the input messages or the completion to fit within the limit."
            )
        if prompt >= self.engine.longest_input:
            raise BadRequest(
                f"Input length ({prompt} tokens) exceeds the maximum allowed length ({self.engine.longest_input} tokens). "
                "Use a shorter input or enable --allow-auto-truncate."
            )
        room = self.engine.longest_input + 5 - prompt
        stop = body.get("stop")
        stops = (stop,) if isinstance(stop, str) else tuple(str(word) for word in stop or ())
        tokens = room if wanted is None else min(wanted, room)
        return Limits(tokens, stops, bool(body.get("ignore_eos")), self.engine.model.eos)

    # --- answering

    async def chat_completions(self, request: Request) -> Answer:
        """Chat, streamed or not."""
        body = read_json(request, "openai_v1_chat_completions")
        messages = read_messages(body, request)
        if body.get("n") == 0:
            raise BadRequest("range() arg 3 must not be zero", "BadRequest")
        tools = [tool for tool in body.get("tools") or [] if isinstance(tool, dict)]
        choice = body.get("tool_choice", "auto" if tools else "none")
        tools = tools if choice != "none" else []
        options = {**(self.args.default_chat_template_kwargs or {}), **(body.get("chat_template_kwargs") or {})}
        thinking = bool(options.get("enable_thinking", True))
        pictures = reply.images_of(messages)
        if pictures and (not self.engine.model.multimodal or self.args.language_model_only):
            raise BadRequest("This model does not support image input: it was started without its vision part.")
        asked = Prompt.of(chat.prompt(messages, tools, thinking, len(pictures)), self.engine)
        wanted = body.get("max_completion_tokens", body.get("max_tokens"))
        limits = self._limits(body, len(asked.tokens), wanted)
        script = self._script(body, messages, tools, choice, thinking, limits)
        forced = isinstance(choice, dict) or choice == "required"
        grammar = (forced and bool(tools)) or self._schema(body) is not None
        turn = Turn(self.engine, asked, script, body, grammar=grammar)
        head = {"id": turn.rid, "created": int(time.time()), "model": body.get("model") or self.engine.name}
        if body.get("stream"):
            return Stream(self._chat_events(turn, head, body), list(SSE))
        choices = await asyncio.gather(
            *(self._chat_choice(turn.again(index), index) for index in range(int(body.get("n") or 1)))
        )
        usage = turn.usage(sum(entry[1] for entry in choices), choices[0][2])
        return json_response(
            {
                "id": head["id"],
                "object": "chat.completion",
                "created": head["created"],
                "model": head["model"],
                "choices": [entry[0] for entry in choices],
                "usage": usage,
                "metadata": {"weight_version": self.args.weight_version},
            }
        )

    def _schema(self, body: dict[str, Any]) -> dict[str, Any] | None:
        wanted = body.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            schema = (wanted.get("json_schema") or {}).get("schema") or {}
            return dict(schema)
        return {"type": "object", "properties": {}} if wanted.get("type") == "json_object" else None

    def _script(
        self,
        body: dict[str, Any],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        choice: Any,
        thinking: bool,
        limits: Limits,
    ) -> Script:
        try:
            answer = reply.answer(messages, tools, choice, self._schema(body))
        except NotAPicture as problem:
            raise BadRequest(f"Failed to load image: {problem}", "BadRequest") from problem
        if self.engine.control.fault("garbage"):
            answer = reply.garbage(len(messages))
        parsing = Parsing(
            reasoning=self.args.reasoning_parser in chat.THINK_PARSERS and body.get("separate_reasoning", True) is not False,
            calls=self.args.tool_call_parser in chat.CALL_PARSERS,
            forced=(isinstance(choice, dict) or choice == "required") and bool(tools),
        )
        pieces = chat.pieces_of(answer, thinking, parsing)
        favoured = (body.get("logit_bias") or {}).get(str(self.engine.model.eos), 0)
        if favoured > 0:
            before = sum(piece.kind in ("hidden", "reasoning") for piece in pieces)
            pieces = pieces[: before + SHORTENED]
        return chat.script(pieces, limits)

    async def _chat_choice(self, turn: Turn, index: int) -> tuple[dict[str, Any], int, int]:
        """Run one choice to its end; returns it, its tokens, the cached tokens of the prompt."""
        async for _ in turn.steps():
            pass
        calls = chat.calls_of(turn.script.pieces)
        reasoning = turn.script.shown("reasoning")
        message = {
            "role": "assistant",
            "content": turn.script.shown("content"),
            "reasoning_content": reasoning or None,
            "tool_calls": calls,
        }
        entry = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": turn.script.finish,
            "matched_stop": turn.script.matched,
        }
        return entry, turn.script.tokens, turn.cached

    async def _chat_events(self, turn: Turn, head: dict[str, Any], body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield a chat's server-sent events, one a token (a step of speculation brings several at once)."""

        def event(delta: dict[str, Any], finish: str | None = None, matched: Any = None, **more: Any) -> bytes:
            entry = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": matched}
            return self._event({**self._chunk_head(head), "choices": [entry], **more})

        try:
            async for before, after in turn.steps():
                if before == 0:
                    yield event({"reasoning_content": None, "role": "assistant", "content": ""})
                pieces = turn.script.between(before, after)
                for kind in ("reasoning", "content"):
                    shown = "".join(piece.text for piece in pieces if piece.kind == kind)
                    if shown:
                        yield event(
                            {"reasoning_content": shown}
                            if kind == "reasoning"
                            else {"reasoning_content": None, "content": shown}
                        )
                for piece in pieces:
                    for call in piece.events if piece.kind == "call" else []:
                        empty = {"role": None, "content": None, "reasoning_content": None}
                        yield event({**empty, "tool_calls": [call]}, usage=None)
        except Refused as problem:
            yield self._event({"error": {"message": str(problem), "type": "503", "param": None, "code": 503}})
            yield b"data: [DONE]\n\n"
            return
        yield event({"reasoning_content": None}, turn.script.finish, turn.script.matched)
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = turn.usage(turn.script.tokens, turn.cached)
            yield self._event({**self._chunk_head(head), "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _chunk_head(head: dict[str, Any]) -> dict[str, Any]:
        return {"id": head["id"], "object": "chat.completion.chunk", "created": int(time.time()), "model": head["model"]}

    @staticmethod
    def _event(value: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"

    def _continuation(self, body: dict[str, Any], wanted: int | None, prompt_text: str) -> tuple[Prompt, Script]:
        asked = Prompt.of(text.split(prompt_text), self.engine)
        limits = self._limits(body, len(asked.tokens), wanted)
        answer = reply.answer([{"role": "user", "content": prompt_text}], [], "none", None)
        return asked, chat.script(chat.pieces_of(answer, False, Parsing(False, False)), limits)

    async def completions(self, request: Request) -> Answer:
        """Complete a text, streamed or not."""
        body = read_json(request, "openai_v1_completions")
        if "prompt" not in body:
            raise validation(
                [f"{{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required', 'input': {body!r}}}"],
                request.path,
                "openai_v1_completions",
            )
        given = body["prompt"]
        prompt_text = given if isinstance(given, str) else " ".join(str(part) for part in given)
        asked, script = self._continuation(body, body.get("max_tokens", 16), prompt_text)
        name = body.get("model") or self.engine.name
        turn = Turn(self.engine, asked, script, body)
        head = {"id": turn.rid, "object": "text_completion"}

        def choice(shown: str, finish: str | None, matched: Any) -> dict[str, Any]:
            return {"index": 0, "text": shown, "logprobs": None, "finish_reason": finish, "matched_stop": matched}

        async def events() -> AsyncIterator[bytes]:
            async for before, after in turn.steps():
                shown = "".join(piece.text for piece in script.between(before, after))
                last = after >= script.tokens
                entry = choice(shown, script.finish if last else None, script.matched if last else None)
                yield self._event({**head, "created": int(time.time()), "model": name, "choices": [entry]})
            if (body.get("stream_options") or {}).get("include_usage"):
                usage = turn.usage(script.tokens, turn.cached)
                yield self._event({**head, "created": int(time.time()), "model": name, "choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"

        if body.get("stream"):
            return Stream(events(), list(SSE))
        async for _ in turn.steps():
            pass
        shown = script.shown("content")
        return json_response(
            {
                **head,
                "created": int(time.time()),
                "model": name,
                "choices": [choice(shown, script.finish, script.matched)],
                "usage": turn.usage(script.tokens, turn.cached),
                "metadata": {"weight_version": self.args.weight_version},
            }
        )

    async def generate(self, request: Request) -> Answer:
        """Complete a text in the engine's own format."""
        body = read_json(request, "generate_request")
        sampling = body.get("sampling_params") or {}
        given = body.get("text")
        prompt_text = " ".join(given) if isinstance(given, list) else str(given or "")
        wanted = int(sampling.get("max_new_tokens") or 128)
        asked, script = self._continuation({**sampling}, wanted, prompt_text)
        turn = Turn(self.engine, asked, script, {**sampling, "stream": body.get("stream")})
        received = time.time()

        def state(count: int, done: bool) -> dict[str, Any]:
            now = time.time()
            finish: dict[str, Any] = {"type": script.finish}
            finish |= {"length": count} if script.finish == "length" else {"matched": script.matched}
            return {
                "text": "".join(piece.text for piece in script.between(0, count)),
                "output_ids": list(script.output(self.engine.model.vocab, self.engine.model.eos))[:count],
                "meta_info": {
                    "id": body.get("rid") or turn.rid,
                    "finish_reason": finish if done else None,
                    "prompt_tokens": len(asked.tokens),
                    "weight_version": self.args.weight_version,
                    "num_retractions": 0,
                    "forward_entry_time": received + turn.queued,
                    "prefill_finished_time": now,
                    "queue_time": turn.queued,
                    "reasoning_tokens": 0,
                    "completion_tokens": count,
                    "cached_tokens": turn.cached,
                    "cached_tokens_details": None,
                    "dp_rank": None,
                    "e2e_latency": now - received,
                    "request_received_ts": received,
                    "api_server_dispatch_finish_ts": received,
                    "request_finished_ts": now,
                    "decode_throughput": count / max(now - received, 1e-6),
                    "response_sent_to_client_ts": now,
                },
            }

        async def events() -> AsyncIterator[bytes]:
            async for _, after in turn.steps():
                yield self._event(state(after, after >= script.tokens))
            yield b"data: [DONE]\n\n"

        if body.get("stream"):
            return Stream(events(), list(SSE))
        async for _ in turn.steps():
            pass
        return json_response(state(script.tokens, True))

    async def tokenize(self, request: Request) -> Answer:
        """Give a text's token numbers."""
        body = read_json(request, "tokenize")
        numbers = list(text.encode(text.split(str(body.get("prompt", ""))), self.engine.model.vocab))
        return json_response({"tokens": numbers, "count": len(numbers), "max_model_len": self.engine.context})
