"""A small HTTP/1.1 server whose headers, chunks and log lines equal uvicorn's in the recordings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from . import journal

HEAD_LIMIT = 65536
VARY = ("vary", "Origin")


@dataclass
class Request:
    """One parsed request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    client: str


@dataclass
class Response:
    """An answer with a body; headers in the order in which they are sent."""

    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Stream:
    """An answer that comes in chunks; each item of `chunks` is one."""

    chunks: AsyncIterator[bytes]
    headers: list[tuple[str, str]]
    status: int = 200


Handler = Callable[[Request], Awaitable[Response | Stream]]


def json_response(value: Any, status: int = 200) -> Response:
    """Make a JSON answer as compact as the real one's."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(status, body, [("content-type", "application/json"), VARY])


def _date() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


class Connection(asyncio.Protocol):
    """One client: requests one after another, each in a task that is cancelled when the client goes away."""

    def __init__(self, handler: Handler, quiet: tuple[str, ...], alive: set[Connection]) -> None:
        self.handler = handler
        self.quiet = quiet
        self.alive = alive
        self.buffer = bytearray()
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport
        self.writable = asyncio.Event()
        self.writable.set()
        self.client = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("-", 0)
        self.client = f"{peer[0]}:{peer[1]}"
        self.alive.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Stop working for somebody who is gone."""
        self.alive.discard(self)
        self.writable.set()
        if self.task:
            self.task.cancel()

    def pause_writing(self) -> None:
        """Wait: the client reads too slowly."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Collect bytes until a request is whole."""
        self.buffer += data
        if self.task is None:
            self._next()

    def _next(self) -> None:
        try:
            request = self._parse()
        except ValueError:  # a length or a chunk size that is no number
            self._refuse()
            return
        if request is not None:
            self.task = asyncio.get_running_loop().create_task(self._serve(request))

    def _parse(self) -> Request | None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > HEAD_LIMIT:
                self._refuse()
            return None
        lines = self.buffer[:end].decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._refuse()
            return None
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = self._body(headers, end + 4)
        if body is None:
            return None
        path, _, query = words[1].partition("?")
        if words[2] == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return Request(words[0], path, query, headers, body, self.client)

    def _body(self, headers: dict[str, str], start: int) -> bytes | None:
        """Take the body out of the buffer, if it is all there."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunked_body(start)
        length = int(headers.get("content-length") or 0)
        if len(self.buffer) < start + length:
            if headers.get("expect", "").lower() == "100-continue" and len(self.buffer) == start:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body = bytes(self.buffer[start : start + length])
        del self.buffer[: start + length]
        return body

    def _chunked_body(self, start: int) -> bytes | None:
        at, body = start, bytearray()
        while True:
            line = self.buffer.find(b"\r\n", at)
            if line < 0:
                return None
            size = int(bytes(self.buffer[at:line]).split(b";")[0] or b"0", 16)
            if len(self.buffer) < line + 2 + size + 2:
                return None
            body += self.buffer[line + 2 : line + 2 + size]
            at = line + 2 + size + 2
            if size == 0:
                del self.buffer[:at]
                return bytes(body)

    def _refuse(self) -> None:
        body = b"Invalid HTTP request received."
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        journal.line("WARNING:  Invalid HTTP request received.")
        self.transport.close()

    async def _serve(self, request: Request) -> None:
        closing = request.headers.get("connection", "").lower() == "close"
        try:
            answer = await self.handler(request)
            if not any(request.path.startswith(prefix) for prefix in self.quiet):
                phrase = HTTPStatus(answer.status).phrase
                target = f"{request.path}?{request.query}" if request.query else request.path
                journal.line(f'INFO:     {self.client} - "{request.method} {target} HTTP/1.1" {answer.status} {phrase}')
            if isinstance(answer, Response):
                self._write(answer, closing)
            else:
                await self._write_stream(answer, closing)
        except asyncio.CancelledError:
            return
        self.task = None
        if closing:
            self.transport.close()
        elif self.buffer:
            self._next()

    def _head(self, status: int, headers: list[tuple[str, str]], closing: bool) -> bytes:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"date: {_date()}", "server: uvicorn"]
        lines += [f"{name}: {value}" for name, value in headers]
        if closing:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, answer: Response, closing: bool) -> None:
        before = [header for header in answer.headers if header[0] == "allow"]
        after = [header for header in answer.headers if header[0] != "allow"]
        headers = [*before, ("content-length", str(len(answer.body))), *after]
        self.transport.write(self._head(answer.status, headers, closing) + answer.body)

    async def _write_stream(self, answer: Stream, closing: bool) -> None:
        headers = [*answer.headers, ("Transfer-Encoding", "chunked")]
        self.transport.write(self._head(answer.status, headers, closing))
        async for chunk in answer.chunks:
            self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if not self.writable.is_set():
                await self.writable.wait()
        self.transport.write(b"0\r\n\r\n")
