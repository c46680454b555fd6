"""A small client of an OpenAI-compatible server, reached through a local (forwarded) port.

What the server does is a value, never an exception: an error body, a refused connection and a stream that breaks off
are all answers to look at. Shapes are those that engines were recorded with (tests/recordings).
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lodger.host.command import Secret

_MAX_BODY = 64 * 1024 * 1024


def dig(value: Any, *path: str | int) -> Any:
    """Return what lies at ``path`` in parsed JSON, None as soon as a step is not there."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


@dataclass(frozen=True)
class Answer:
    """A whole response: ``status`` (0 when none came), its text, how long it took (s).

    ``problem`` is one phrase that says why no whole response came, empty when one did. ``unanswered`` says how the
    connection ended where it did so with no status, before any deadline: whoever answers has perhaps not even seen the
    request. ``lost`` says the same of an earlier connection, after which the question was asked again.
    """

    status: int
    text: str = field(repr=False)  # a server may tell its own keys
    seconds: float
    problem: str = ""
    unanswered: str = ""
    lost: str = ""

    @cached_property
    def body(self) -> Any:
        """The text as parsed JSON, None when it is not JSON."""
        return _parsed(self.text)

    @property
    def ok(self) -> bool:
        """Whether a whole response came, with status 200."""
        return self.status == 200 and not self.problem

    @property
    def trouble(self) -> str:
        """One phrase for what is wrong with the exchange itself; empty when it went well."""
        if self.problem:
            return self.problem
        if self.status == 200:
            return ""
        said = dig(self.body, "message") or dig(self.body, "error", "message") or dig(self.body, "error") or self.text
        return f"HTTP {self.status}: {str(said).strip()[:300] or 'no body'}"


@dataclass(frozen=True)
class StreamEvent:
    """One parsed event of a stream: the JSON chunk, and when it came (s after the request was sent)."""

    at: float
    chunk: Any


@dataclass(frozen=True)
class Stream:
    """A streamed chat: the events, whether ``[DONE]`` came, and the answer as a whole in ``answer``.

    A server that dies in the middle leaves HTTP 200, some chunks, and nothing else: only ``complete`` tells.
    """

    answer: Answer
    events: tuple[StreamEvent, ...] = ()
    done: bool = False

    @property
    def complete(self) -> bool:
        """Whether the stream has its proper end: a chunk with a finish reason, then ``[DONE]``, and no error event."""
        return self.answer.ok and self.done and self.finish_reason is not None and self.error is None

    @property
    def trouble(self) -> str:
        """One phrase for what is wrong with the stream; empty when it is complete."""
        if self.complete:
            return ""
        if self.answer.trouble:
            return self.answer.trouble
        if self.error is not None:
            return f"an error event in the stream: {self.error[:300]}"
        missing = "no final chunk with a finish reason" if self.finish_reason is None else "no [DONE]"
        return f"the stream ended with HTTP 200 after {len(self.events)} chunks but {missing}"

    @property
    def finish_reason(self) -> str | None:
        """The reason given by the final chunk, None when there was no such chunk."""
        reasons = [dig(event.chunk, "choices", 0, "finish_reason") for event in self.events]
        return next((str(reason) for reason in reversed(reasons) if reason), None)

    @property
    def error(self) -> str | None:
        """What an error event said, None when there was none."""
        for event in self.events:
            said = dig(event.chunk, "error")
            if said:
                return str(dig(said, "message") or said)
        return None

    @property
    def content(self) -> str:
        """The visible text, put together."""
        return self._joined("content")

    @property
    def reasoning(self) -> str:
        """The thinking, put together."""
        return self._joined("reasoning_content")

    @property
    def usage(self) -> Any:
        """The usage object of the last chunk that has one (its ``choices`` is empty), None without one."""
        return next((found for event in reversed(self.events) if (found := dig(event.chunk, "usage"))), None)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending the request to the first token of any kind; the opening chunk with only a role is none."""
        return self._token_times[0] if self._token_times else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second from the first token to the last, by the server's own count; None when it gave none."""
        count = dig(self.usage, "completion_tokens")
        if not isinstance(count, int) or count < 2 or not self._token_times:
            return None
        span = self._token_times[-1] - self._token_times[0]
        return (count - 1) / span if span > 0 else None

    @cached_property
    def _token_times(self) -> list[float]:
        kinds = ("content", "reasoning_content", "tool_calls")
        return [e.at for e in self.events if any(dig(e.chunk, "choices", 0, "delta", kind) for kind in kinds)]

    def _joined(self, kind: str) -> str:
        return "".join(str(dig(event.chunk, "choices", 0, "delta", kind) or "") for event in self.events)


def sse_payloads(blocks: Iterator[bytes]) -> Iterator[str]:
    """Yield the data of each server-sent event in ``blocks`` of bytes as they come, however they are cut.

    Lines end at LF or CRLF only: the engine does not escape other characters that Unicode calls line ends, so that
    splitting text by lines would tear an event apart.
    """
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


class Client:
    """A server at ``base_url`` (``http://127.0.0.1:PORT``). Safe to use from several threads.

    Every call has a deadline in seconds for the whole exchange, and is over when it is reached.
    """

    def __init__(self, base_url: str, api_key: Secret | None = None, *, again: bool = False) -> None:
        self.base_url = base_url
        self._api_key = api_key
        self._again = again

    @property
    def patient(self) -> Client:
        """The same server, asked a second time when a connection ends without an answer; two in a row are one."""
        return Client(self.base_url, self._api_key, again=True)

    def get(self, path: str, deadline: float = 10.0) -> Answer:
        """GET ``path``."""
        return self._exchange("GET", path, None, deadline).answer

    def chat(self, body: Mapping[str, Any], deadline: float = 60.0) -> Answer:
        """Send a chat completion and wait for the whole reply."""
        return self._exchange("POST", "/v1/chat/completions", {**body, "stream": False}, deadline).answer

    def stream(self, body: Mapping[str, Any], deadline: float = 60.0) -> Stream:
        """Send a chat completion, streamed and with usage, and take in its events until the end or the deadline."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return self._exchange("POST", "/v1/chat/completions", {**body, **options}, deadline)

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> Stream:
        first = self._once(method, path, body, deadline)
        if not self._again or not (lost := first.answer.unanswered):
            return first
        second = self._once(method, path, body, deadline)
        answer = replace(second.answer, lost=lost)
        if answer.unanswered:
            answer = replace(answer, problem=f"the connection failed twice in a row ({lost}, then {answer.unanswered})")
        return replace(second, answer=answer)

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> Stream:
        from lodger import exchange  # noqa: PLC0415  (costs 0.1 s, which `--list` and a deploy that changes nothing need not pay)

        start = time.monotonic()
        status, problem, ended, done = 0, "", "", False
        events: list[StreamEvent] = []
        taken = bytearray()
        try:
            with (
                exchange.Exchange(deadline) as opened,
                opened.ask(method, self.base_url + path, self._headers(body), _encoded(body)) as response,
            ):
                status = response.status_code
                incoming = _kept(exchange.blocks(response), taken)
                if "text/event-stream" in response.headers.get("content-type", ""):
                    for payload in sse_payloads(incoming):
                        if payload == "[DONE]":
                            done = True
                            break
                        events.append(StreamEvent(time.monotonic() - start, _parsed(payload)))
                else:
                    deque(incoming, maxlen=0)
        except _TooLongError:
            problem = f"the answer is longer than {_MAX_BODY // 2**20} MiB"
        except exchange.ERRORS as error:
            if exchange.timed_out(error):
                problem = f"no {'more of the ' if status else ''}answer within {deadline:g} s"
            else:
                ended = exchange.reason(error)
                problem = f"the connection failed ({ended})"
        text, took = taken.decode("utf-8", "replace"), time.monotonic() - start
        answer = Answer(status, text, took, problem, unanswered="" if status else ended)
        return Stream(answer, tuple(events), done)

    def _headers(self, body: object) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self._api_key.reveal()}"} if self._api_key else {}
        return key | ({"Content-Type": "application/json"} if body is not None else {})


class _TooLongError(Exception):
    """The answer went past a limit of ours."""


def _kept(blocks: Iterable[bytes], taken: bytearray) -> Iterator[bytes]:
    """Yield ``blocks`` and keep them in ``taken``; raise _TooLongError when they are too many."""
    for block in blocks:
        taken.extend(block)
        if len(taken) > _MAX_BODY:
            raise _TooLongError
        yield block


def _encoded(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
