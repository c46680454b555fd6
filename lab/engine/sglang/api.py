"""The endpoints. What a client sees here is held to the recordings field by field."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from . import __version__, chat, journal, reply, text
from .chat import Limits, Parsing, Script
from .engine import Engine, Refused, Running
from .http import VARY, Request, Response, Stream, json_response
from .picture import NotAPicture

# Where the image keeps the engine; the real one tells it to whoever sends malformed JSON.
SOURCE = "/sgl-workspace/sglang/python/sglang/srt/entrypoints/http_server.py"
ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder")
SSE = [("content-type", "text/event-stream; charset=utf-8"), VARY]

Answer = Response | Stream
Endpoint = Callable[[Request], Awaitable[Answer]]


class BadRequest(Exception):
    """A request that is answered with an error body."""

    def __init__(self, message: str, kind: str = "BadRequestError", code: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


def error(message: str, kind: str = "BadRequestError", code: int = 400) -> Response:
    """Make the engine's error body."""
    return json_response({"object": "error", "message": message, "type": kind, "param": None, "code": code}, code)


def validation(errors: list[str], where: str, function: str) -> BadRequest:
    """Word a validation error as the framework does, source path included."""
    plural = "error" if len(errors) == 1 else "errors"
    listing = "".join(f"  {entry}\n" for entry in errors)
    return BadRequest(
        f"{len(errors)} validation {plural}:\n{listing}\n"
        f'  File "{SOURCE}", line 1702, in {function}\n    POST {where} [{", ".join(errors)}]',
        "Bad Request",
    )


class Api:
    """Endpoints over one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.args = engine.args
        get = ("GET",)
        post = ("POST",)
        both = ("GET", "POST")
        self.routes: dict[str, tuple[tuple[str, ...], Endpoint]] = {
            "/": (get, self.root),
            "/ping": (get, self.ping),
            "/health": (get, self.health),
            "/health_generate": (get, self.health),
            "/model_info": (get, self.model_info),
            "/get_model_info": (get, self.model_info),
            "/server_info": (get, self.server_info),
            "/get_server_info": (get, self.server_info),
            "/weight_version": (get, self.weight_version),
            "/get_weight_version": (get, self.weight_version),
            "/v1/models": (get, self.models),
            "/v1/loads": (get, self.loads),
            "/get_load": (get, self.load),
            "/flush_cache": (both, self.flush_cache),
            "/abort_request": (post, self.abort_request),
            "/freeze_gc": (both, self.freeze_gc),
            "/tokenize": (post, self.tokenize),
            "/v1/tokenize": (post, self.tokenize),
            "/generate": (("POST", "PUT"), self.generate),
            "/v1/completions": (post, self.completions),
            "/v1/chat/completions": (post, self.chat_completions),
        }
        if self.args.enable_metrics:
            self.routes["/metrics"] = (get, self.metrics)
        # With an admin key set, only that key opens these.
        self.admin = {"/flush_cache", "/abort_request", "/freeze_gc"}

    async def handle(self, request: Request) -> Answer:
        """Answer one request."""
        refused = self._unauthorized(request)
        if refused:
            return refused
        metrics = self.engine.metrics
        counted = self.args.enable_metrics
        if counted:
            metrics.http_begins(request.method, request.path)
        try:
            answer = await self._dispatch(request)
        except BaseException:
            if counted:
                metrics.http_ends(request.method, request.path)
            raise
        if counted:
            metrics.http_answered(request.method, request.path, answer.status)
            if isinstance(answer, Stream):
                answer.chunks = self._counted(answer.chunks, request)
            else:
                metrics.http_ends(request.method, request.path)
        return answer

    async def _counted(self, chunks: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self.engine.metrics.http_ends(request.method, request.path)

    async def _dispatch(self, request: Request) -> Answer:
        path = request.path
        if path.startswith("/v1/models/"):
            return await self.one_model(request)
        if path not in self.routes:
            return json_response({"detail": "Not Found"}, 404)
        methods, endpoint = self.routes[path]
        if request.method not in methods:
            refusal = json_response({"detail": "Method Not Allowed"}, 405)
            refusal.headers.insert(0, ("allow", ", ".join(methods)))
            return refusal
        try:
            return await endpoint(request)
        except BadRequest as problem:
            return error(str(problem), problem.kind, problem.code)
        except Refused as problem:
            return error(str(problem), "503", 503)

    def _unauthorized(self, request: Request) -> Response | None:
        key, admin = self.args.api_key, self.args.admin_api_key
        if request.method == "OPTIONS" or request.path.startswith(("/health", "/metrics")):
            return None
        given = request.headers.get("authorization", "")
        if request.path in self.admin and admin:
            allowed = given == f"Bearer {admin}"
        else:
            allowed = not key or given == f"Bearer {key}"
        if allowed:
            return None
        answer = json_response({"error": "Unauthorized"}, 401)
        answer.headers.remove(VARY)
        return answer

    # --- state of the server

    async def root(self, _request: Request) -> Answer:
        """Say that it runs."""
        return json_response("SGLang is running")

    async def ping(self, _request: Request) -> Answer:
        """Say nothing, always with 200."""
        return Response(200, b"", [VARY])

    async def health(self, request: Request) -> Answer:
        """Generate a token; 503 while starting, shutting down or hung."""
        if self.engine.draining:
            journal.line("Health check request received during shutdown. Returning 503.")
            return Response(503, b"", [VARY])
        if self.engine.status == "Starting" or self.engine.control.fault("never_healthy"):
            return Response(503, b"", [VARY])
        plain = os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in ("0", "false")
        if plain and request.path == "/health":
            return Response(200, b"", [VARY])
        return Response(200 if await self.engine.healthy() else 503, b"", [VARY])

    def _deprecated(self, request: Request, instead: str) -> None:
        if request.path != instead:
            journal.line(
                f"Endpoint '{request.path}' is deprecated and will be removed in a future version. Please use '{instead}' instead."
            )

    async def model_info(self, request: Request) -> Answer:
        """Describe the model."""
        self._deprecated(request, "/model_info")
        args, model = self.args, self.engine.model
        return json_response(
            {
                "model_path": args.model_path,
                "served_model_name": self.engine.name,
                "tokenizer_path": args.tokenizer_path or args.model_path,
                "is_generation": True,
                "preferred_sampling_params": args.preferred_sampling_params,
                "weight_version": args.weight_version,
                "load_format": args.load_format,
                "reasoning_parser": args.reasoning_parser,
                "tool_call_parser": args.tool_call_parser,
                "has_image_understanding": model.multimodal,
                "has_audio_understanding": False,
                "model_type": model.model_type,
                "architectures": [model.architecture],
                "embedding": self._embedding(),
            }
        )

    def _embedding(self) -> dict[str, Any]:
        from .worker import prefill_sizes  # the server otherwise needs nothing of the scheduler's process

        none = dict.fromkeys(("family", "task", "execution", "attention"), "none")
        off = dict.fromkeys(
            ["supports_dimensions", "supports_token_embeddings", "supports_multimodal", "requires_embedding_flag", "auto_enable_embedding", "safe_disable_kv_cache", "safe_disable_radix_cache", "safe_disable_chunked_prefill", "enabled"],
            False,
        )
        graphs = not (self.args.disable_prefill_cuda_graph or self.args.disable_cuda_graph)
        return {
            **none,
            **off,
            "pooling": "model_defined",
            "normalize": False,
            "postprocessor": "none",
            "tokenizer_special_tokens": "model_default",
            "bcg_eligibility": "disabled",
            "matryoshka_dimensions": [],
            "bcg": {
                "prefill_backend": "breakable" if graphs else "disabled",
                "enabled": graphs,
                "capture_token_budget": self.args.chunked_prefill_size,
                "capture_batch_sizes": prefill_sizes(self.args),
            },
            "cache": {
                "kv_cache_disabled": False,
                "radix_cache_disabled": self.args.disable_radix_cache,
                "chunked_prefill_disabled": self.args.chunked_prefill_size <= 0,
            },
        }

    async def server_info(self, request: Request) -> Answer:
        """Give the whole configuration away, keys in clear text included, with the scheduler's state."""
        self._deprecated(request, "/server_info")
        await self.engine.ask("state", "state")
        ready, stats = self.engine.ready, self.engine.stats
        fields = self.engine.server_args_fields()
        graphs = {phase: round(ready["graphs_gb"].get(phase, 0.0), 3) for phase in ready["timings"]["cuda_graph"]}
        counters = stats.get("counters", {})
        state = {
            **fields,
            "pp_max_micro_batch_size": ready["running"],
            "_resolved_overrides": [["_page_size_default", {"page_size": self.args.page_size}]],
            "grpc_worker_threads": 4,
            "_quantization_explicitly_unset": False,
            "_cuda_graph_config_locked": [],
            "_declarations_materialized": True,
            "_mx_config_cache": {},
            "max_speculative_num_draft_tokens": self.args.speculative_num_draft_tokens,
            "last_gen_throughput": stats.get("throughput", 0.0),
            "memory_usage": {
                "weight": round(ready["weights_gb"], 3),
                "kvcache": round(ready["kv_gb"], 3),
                "startup_available": round(ready["available_gb"], 3),
                "token_capacity": ready["tokens"],
                "token_capacity_swa": None,
                "graph": graphs,
            },
            "startup_time": ready["timings"],
            "effective_max_running_requests_per_dp": ready["running"],
        }
        if counters.get("verified_total"):
            state["avg_spec_accept_length"] = counters["accepted_total"] / counters["verified_total"]
        return json_response(
            {
                **fields,
                "status": "ready",
                "max_total_num_tokens": ready["tokens"],
                "max_req_input_len": self.engine.longest_input,
                "startup_time": {**ready["timings"], "tokenizer_e2e": ready["seconds"]},
                "internal_states": [state],
                "version": __version__,
                "kv_events": None,
            }
        )

    async def weight_version(self, _request: Request) -> Answer:
        """Refuse: the endpoint is gone by design."""
        raise BadRequest(
            "Endpoint '/get_weight_version' or '/weight_version' is deprecated. Please use '/model_info' instead.", "404", 404
        )

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.engine.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.engine.name,
            "parent": None,
            "max_model_len": self.engine.context,
        }

    async def models(self, _request: Request) -> Answer:
        """List the one model."""
        return json_response({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Answer:
        """Describe the model by name."""
        name = urllib.parse.unquote(request.path.removeprefix("/v1/models/"))
        if name == self.engine.name:
            return json_response(self._card())
        detail = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error", "param": "model"}
        return json_response({"error": {**detail, "code": "model_not_found"}}, 404)

    async def load(self, request: Request) -> Answer:
        """Give the load in the old form."""
        self._deprecated(request, "/v1/loads")
        stats = self.engine.stats
        running, waiting = stats.get("running", 0), stats.get("waiting", 0)
        return json_response(
            [
                {
                    "dp_rank": 0,
                    "num_reqs": running + waiting,
                    "num_waiting_reqs": waiting,
                    "num_tokens": stats.get("used", 0) + stats.get("pending", 0),
                    "num_pending_tokens": stats.get("pending", 0),
                    "ts_tic": time.perf_counter(),
                }
            ]
        )

    async def loads(self, _request: Request) -> Answer:
        """Give the load."""
        began = time.perf_counter()
        ready, stats = self.engine.ready, self.engine.stats
        used = stats.get("used", 0)
        counters = stats.get("counters", {})
        decoded = float(counters.get("decode", 0))
        load: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": stats.get("running", 0),
            "num_waiting_reqs": stats.get("waiting", 0),
            "num_waiting_uncached_tokens": stats.get("pending", 0),
            "num_used_tokens": used,
            "num_total_tokens": used + stats.get("pending", 0),
            "num_active_tokens": used,
            "max_total_num_tokens": ready["tokens"],
            "max_running_requests": ready["running"],
            "token_usage": round(used / ready["tokens"], 4),
            "gen_throughput": round(stats.get("throughput", 0.0), 2),
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": counters.get("prefill_compute", 0),
            "total_prefill_busy_us": 0,
            "decode_moments": [decoded, decoded, 0.0, decoded, 0.0, decoded],
            "memory": {
                "weight_gb": round(ready["weights_gb"], 3),
                "kv_cache_gb": round(ready["kv_gb"], 3),
                "graph_gb": round(sum(ready["graphs_gb"].values()), 3),
                "token_capacity": ready["tokens"],
            },
        }
        if ready["draft_tokens"]:
            load["speculative"] = {
                "accept_length": stats.get("accept_length", 0.0),
                "accept_rate": stats.get("accept_rate", 0.0),
            }
        load["disaggregation"] = {
            "mode": "null",
            **dict.fromkeys(
                ["prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs", "decode_prealloc_queue_reqs", "decode_transfer_queue_reqs", "decode_retracted_queue_reqs"],
                0,
            ),
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        }
        load["queues"] = {"waiting": stats.get("waiting", 0), "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
        self.engine.metrics.loads_served(time.perf_counter() - began)
        return json_response(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": __version__,
                "accelerator": ready["gpu"],
                "num_accelerators": self.args.tp_size,
                "loads": [load],
            }
        )

    async def metrics(self, _request: Request) -> Answer:
        """Give the Prometheus text, in one chunk."""
        self.engine.metrics.processor_seconds(time.process_time())
        body = self.engine.metrics.registry.render().encode()

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        return Stream(chunks(), [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), VARY])

    async def flush_cache(self, _request: Request) -> Answer:
        """Empty the prefix cache, unless requests run."""
        if (await self.engine.ask("flush", "flushed"))["done"]:
            note = "(When there are running or waiting requests, the operation will not be performed.)"
            return Response(200, f"Cache flushed.\nPlease check backend logs for more details. {note}\n".encode(), [VARY])
        return Response(400, b"Flush cache failed.\n", [VARY])

    async def abort_request(self, request: Request) -> Answer:
        """Accept an abort by id (the lab's clients abort by going away)."""
        self._json(request, "abort_request")
        return Response(200, b"", [VARY])

    async def freeze_gc(self, _request: Request) -> Answer:
        """Do as asked: there is nothing to freeze."""
        return Response(200, b"Garbage collection frozen.\n", [VARY])

    # --- reading requests

    def _json(self, request: Request, function: str) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").split(";")[0].strip()
        if kind != "application/json":
            said = "Unsupported Media Type: Only 'application/json' is allowed"
            entry = f"{{'loc': ['header', 'content-type'], 'msg': \"{said}\", 'type': 'value_error'}}"
            raise BadRequest(f"1 validation error:\n  {entry} [{entry}]", "Bad Request")
        try:
            body = json.loads(request.body)
        except ValueError as problem:
            at = getattr(problem, "pos", 0)
            cause = "unexpected end of data" if at >= len(request.body.rstrip()) else str(getattr(problem, "msg", problem))
            raise validation(
                [
                    f"{{'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error', 'input': {{}}, "
                    f"'ctx': {{'error': {cause!r}}}}}"
                ],
                request.path,
                function,
            ) from problem
        if not isinstance(body, dict):
            raise validation(
                [
                    "{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object "
                    f"to extract fields from', 'input': {body!r}}}"
                ],
                request.path,
                function,
            )
        return body

    def _messages(self, body: dict[str, Any], request: Request) -> list[dict[str, Any]]:
        function = "openai_v1_chat_completions"
        if "messages" not in body:
            seen = {**body, "tool_choice": "auto" if body.get("tools") else "none"}
            raise validation(
                [f"{{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required', 'input': {seen!r}}}"],
                request.path,
                function,
            )
        messages = body["messages"]
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise validation(
                [
                    f"{{'type': 'list_type', 'loc': ('body', 'messages'), 'msg': 'Input should be a valid list', 'input': {messages!r}}}"
                ],
                request.path,
                function,
            )
        for index, message in enumerate(messages):
            role = message.get("role")
            if role != "user" and str(role).lower() not in ROLES:
                raise validation(self._role_errors(index, role), request.path, function)
        if not messages:
            raise BadRequest("Messages cannot be empty.")
        return messages

    @staticmethod
    def _role_errors(index: int, role: Any) -> list[str]:
        said = "'role' must be one of " + ", ".join(f"'{name}'" for name in ROLES) + " (case-insensitive)."
        generic = f"('body', 'messages', {index}, 'function-after[validate_thinking_parts_role(), ChatCompletionMessage"
        return [
            f"{{'type': 'value_error', 'loc': {generic}GenericParam]', 'role'), 'msg': \"Value error, {said}\", "
            f"'input': {role!r}, 'ctx': {{'error': ValueError(\"{said}\")}}}}",
            f"{{'type': 'literal_error', 'loc': {generic}UserParam]', 'role'), 'msg': \"Input should be 'user'\", "
            f"'input': {role!r}, 'ctx': {{'expected': \"'user'\"}}}}",
        ]

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
        if prompt >= context:
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
        body = self._json(request, "openai_v1_chat_completions")
        messages = self._messages(body, request)
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
        prompt = text.encode(chat.prompt(messages, tools, thinking, len(pictures)), self.engine.model.vocab)
        wanted = body.get("max_completion_tokens", body.get("max_tokens"))
        limits = self._limits(body, len(prompt), wanted)
        script = self._script(body, messages, tools, choice, thinking, limits)
        forced = isinstance(choice, dict) or choice == "required"
        grammar = (forced and bool(tools)) or self._schema(body) is not None
        head = {"id": uuid.uuid4().hex, "created": int(time.time()), "model": body.get("model") or self.engine.name}
        turn = Turn(self.engine, prompt, script, bool(body.get("stream")), grammar)
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
        return chat.script(chat.pieces_of(answer, thinking, parsing), limits)

    async def _chat_choice(self, turn: Turn, index: int) -> tuple[dict[str, Any], int, int]:
        """Run one choice to its end; returns it, its tokens, the cached tokens of the prompt."""
        async for _ in turn.steps():
            pass
        pieces = turn.script.pieces
        calls = chat.calls_of(pieces)
        reasoning = turn.script.shown(len(pieces), "reasoning")
        message = {
            "role": "assistant",
            "content": turn.script.shown(len(pieces), "content"),
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
                pieces = turn.script.pieces[before:after]
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

    def _continuation(self, body: dict[str, Any], wanted: int | None, prompt_text: str) -> tuple[Any, Script]:
        prompt = text.encode(text.split(prompt_text), self.engine.model.vocab)
        limits = self._limits(body, len(prompt), wanted)
        answer = reply.answer([{"role": "user", "content": prompt_text}], [], "none", None)
        return prompt, chat.script(chat.pieces_of(answer, False, Parsing(False, False)), limits)

    async def completions(self, request: Request) -> Answer:
        """Complete a text, streamed or not."""
        body = self._json(request, "openai_v1_completions")
        if "prompt" not in body:
            raise validation(
                [f"{{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required', 'input': {body!r}}}"],
                request.path,
                "openai_v1_completions",
            )
        given = body["prompt"]
        prompt_text = given if isinstance(given, str) else " ".join(str(part) for part in given)
        prompt, script = self._continuation(body, body.get("max_tokens", 16), prompt_text)
        head = {"id": uuid.uuid4().hex, "object": "text_completion"}
        name = body.get("model") or self.engine.name
        turn = Turn(self.engine, prompt, script, bool(body.get("stream")), False)

        def choice(shown: str, finish: str | None, matched: Any) -> dict[str, Any]:
            return {"index": 0, "text": shown, "logprobs": None, "finish_reason": finish, "matched_stop": matched}

        async def events() -> AsyncIterator[bytes]:
            async for before, after in turn.steps():
                shown = "".join(piece.text for piece in script.pieces[before:after])
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
        shown = "".join(piece.text for piece in script.pieces)
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
        body = self._json(request, "generate_request")
        sampling = body.get("sampling_params") or {}
        given = body.get("text")
        prompt_text = " ".join(given) if isinstance(given, list) else str(given or "")
        wanted = int(sampling.get("max_new_tokens") or 128)
        prompt, script = self._continuation({**sampling}, wanted, prompt_text)
        turn = Turn(self.engine, prompt, script, bool(body.get("stream")), False)
        received = time.time()

        def state(count: int, done: bool) -> dict[str, Any]:
            now = time.time()
            finish: dict[str, Any] = {"type": script.finish}
            finish |= {"length": count} if script.finish == "length" else {"matched": script.matched}
            return {
                "text": "".join(piece.text for piece in script.pieces[:count]),
                "output_ids": list(script.output(self.engine.model.vocab, self.engine.model.eos))[:count],
                "meta_info": {
                    "id": body.get("rid") or uuid.uuid4().hex,
                    "finish_reason": finish if done else None,
                    "prompt_tokens": len(prompt),
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
        body = self._json(request, "tokenize")
        numbers = list(text.encode(text.split(str(body.get("prompt", ""))), self.engine.model.vocab))
        return json_response({"tokens": numbers, "count": len(numbers), "max_model_len": self.engine.context})


class Turn:
    """One answer being generated: steps, cached tokens, usage, metrics."""

    def __init__(self, engine: Engine, prompt: Any, script: Script, streaming: bool, grammar: bool) -> None:
        self.engine = engine
        self.prompt = prompt
        self.script = script
        self.streaming = streaming
        self.grammar = grammar
        self.cached = 0
        self.queued = 0.0

    def again(self, index: int) -> Turn:
        """Return itself for the first choice, a copy for further ones."""
        return self if index == 0 else Turn(self.engine, self.prompt, self.script, self.streaming, self.grammar)

    async def steps(self) -> AsyncIterator[tuple[int, int]]:
        """Generate; yields (tokens before, tokens after) at each step."""
        model, metrics = self.engine.model, self.engine.metrics
        output = self.script.output(model.vocab, model.eos)
        began = last = time.monotonic()
        sent = 0
        state: Running | None = None
        async for state, count, _ in self.engine.generate(self.prompt, output):
            now = time.monotonic()
            self.cached, self.queued = state.cached, state.queued
            if sent == 0:
                metrics.first_token(now - began, self.streaming)
            elif count:
                metrics.between_tokens(now - last, count)
            last = now
            yield sent, sent + count
            sent += count
        metrics.finished(len(self.prompt), self.cached, sent, time.monotonic() - began, self.streaming, self.grammar)

    def usage(self, completion: int, cached: int) -> dict[str, Any]:
        """Return the usage block; cached tokens are told only with --enable-cache-report, and never as zero."""
        told = self.engine.args.enable_cache_report and cached
        thought = sum(piece.kind in ("reasoning", "hidden") for piece in self.script.pieces)
        return {
            "prompt_tokens": len(self.prompt),
            "total_tokens": len(self.prompt) + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached} if told else None,
            "reasoning_tokens": thought,
        }
