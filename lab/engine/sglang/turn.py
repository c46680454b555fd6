"""One answer being generated: its steps, its usage, and what is recorded of it."""

from __future__ import annotations

import time
import uuid
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from . import requestlog, text
from .chat import Script
from .engine import Engine, Running

PARCEL = 50
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_new_tokens", "stop", "ignore_eos", "n")


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens, and its text if requests are logged (it may be long)."""

    tokens: array[int]
    text: str

    @classmethod
    def of(cls, pieces: list[str], engine: Engine) -> Prompt:
        """Encode a prompt's pieces."""
        return cls(text.encode(pieces, engine.model.vocab), "".join(pieces) if engine.args.log_requests else "")


class Turn:
    """One answer being generated: steps, cached tokens, usage, metrics."""

    def __init__(self, engine: Engine, asked: Prompt, script: Script, body: dict[str, Any], *, grammar: bool = False) -> None:
        self.engine = engine
        self.asked = asked
        self.prompt = asked.tokens
        self.body = body
        self.script = script
        self.streaming = bool(body.get("stream"))
        self.grammar = grammar
        self.rid = uuid.uuid4().hex  # the same in the answer and in the log
        self.cached = 0
        self.queued = 0.0

    def again(self, index: int) -> Turn:
        """Return itself for the first choice, a copy for further ones."""
        return self if index == 0 else Turn(self.engine, self.asked, self.script, self.body, grammar=self.grammar)

    async def steps(self) -> AsyncIterator[tuple[int, int]]:
        """Generate; yields (tokens before, tokens after) at each step."""
        model, metrics = self.engine.model, self.engine.metrics
        output = self.script.output(model.vocab, model.eos)
        began = last = time.monotonic()
        sent = unseen = 0
        self._log(requestlog.received)
        state: Running
        async for state, count, _ in self.engine.generate(self.prompt, output, self.script.tokens, self.rid):
            now = time.monotonic()
            self.cached, self.queued = state.cached, state.queued
            if sent == 0:
                metrics.first_token(now - began, self.streaming)
                last = now
            else:
                unseen += count
                # Without a stream the tokens reach this side in parcels of fifty.
                if unseen and (self.streaming or unseen >= PARCEL):
                    metrics.between_tokens(now - last, unseen)
                    last, unseen = now, 0
            yield sent, sent + count
            sent += count
        seconds = time.monotonic() - began
        metrics.finished(len(self.prompt), self.cached, sent, seconds, self.streaming, self.grammar)
        tokens = {"prompt_tokens": len(self.prompt), "completion_tokens": sent, "cached_tokens": self.cached}
        meta = {"id": self.rid, "finish_reason": {"type": self.script.finish}, **tokens, "e2e_latency": seconds}
        self._log(requestlog.finished, "".join(piece.text for piece in self.script.between(0, sent)), meta)

    def _log(self, write: Callable[..., None], *more: Any) -> None:
        args = self.engine.args
        if args.log_requests:
            sampling = {key: self.body[key] for key in SAMPLING if key in self.body}
            write(args, self.rid, self.asked.text, sampling, self.streaming, *more)

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
