"""Small servers on the loopback: each does with every connection what a test wants to see met."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket], object]
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


class Server:
    """Accepts connections until it is closed, each in a thread of its own; ``heard`` are the requests read by `whole`."""

    def __init__(self, *behaviours: Behaviour) -> None:
        """Treat the first connection as the first behaviour says, and so on; all others as the last one says."""
        self.connections = 0
        self._behaviours = behaviours
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            behave = self._behaviours[min(self.connections, len(self._behaviours) - 1)]
            self.connections += 1
            threading.Thread(target=self._treat, args=(connection, behave), daemon=True).start()

    @staticmethod
    def _treat(connection: socket.socket, behave: Behaviour) -> None:
        with connection, contextlib.suppress(OSError):
            behave(connection)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def serving(*behaviours: Behaviour) -> Iterator[Server]:
    server = Server(*behaviours)
    try:
        yield server
    finally:
        server.close()


def whole(connection: socket.socket) -> bytes:
    """Read a request to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, body = data.split(b"\r\n\r\n", 1)
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < sum(lengths):
        body += received(connection)
    return head + b"\r\n\r\n" + body


def received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the client went away")
    return data


def reset(connection: socket.socket) -> None:
    """Close with a reset, as the kernel does for a server that ends without having read all it was sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answering(data: bytes, *, read: bool = True, then: Behaviour = lambda _: None) -> Behaviour:
    """Send ``data`` once the request is there (or at its first bytes), then do what ``then`` does, and close."""

    def behave(connection: socket.socket) -> None:
        whole(connection) if read else received(connection)
        connection.sendall(data)
        then(connection)

    return behave


def dripping(data: bytes, pause: float = 0.05) -> Behaviour:
    """Send ``data``, and then a byte every ``pause`` seconds for as long as somebody listens."""

    def behave(connection: socket.socket) -> None:
        whole(connection)
        connection.sendall(data)
        while True:
            connection.sendall(b"a")
            time.sleep(pause)

    return behave


def early(data: bytes, then: Behaviour = lambda _: None) -> Behaviour:
    """Answer at the first bytes of a request, do what ``then`` does, and close with the rest of it unread."""
    return answering(data, read=False, then=then)


def waits(connection: socket.socket) -> None:
    """Neither read nor close for as long as a test takes."""
    del connection
    time.sleep(60)


def relaying(port: int, bytes_per_s: float) -> Behaviour:
    """Carry a connection to ``port``, upwards slowly; a server that takes no more is still listened to."""

    def behave(connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as far:
            threading.Thread(target=_slowly, args=(connection, far, bytes_per_s), daemon=True).start()
            with contextlib.suppress(OSError):
                while data := far.recv(65536):
                    connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            time.sleep(1)

    return behave


def _slowly(source: socket.socket, target: socket.socket, bytes_per_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(16384):
            target.sendall(data)
            time.sleep(len(data) / bytes_per_s)


def silent(connection: socket.socket) -> None:
    """Take a request in and say nothing until the client gives up."""
    whole(connection)
    connection.recv(1)


def deaf(connection: socket.socket) -> None:
    """Read nothing, say nothing, and wait."""
    del connection
    time.sleep(60)


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """Return a response with its length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
