"""What server and scheduler say to each other: a JSON message and the tokens that belong to it."""

from __future__ import annotations

import json
import socket
import struct
from array import array
from typing import Any

Message = dict[str, Any]
HEAD = struct.Struct("<II")


def encode(message: Message, tokens: array[int] | None = None) -> bytes:
    """Make one frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    blob = tokens.tobytes() if tokens else b""
    return HEAD.pack(len(body), len(blob)) + body + blob


class Decoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Message, array[int]]]:
        """Add bytes; returns the frames that are now complete."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= HEAD.size:
            body, blob = HEAD.unpack_from(self._buffer)
            end = HEAD.size + body + blob
            if len(self._buffer) < end:
                break
            message = json.loads(self._buffer[HEAD.size : HEAD.size + body])
            tokens = array("I")
            tokens.frombytes(bytes(self._buffer[HEAD.size + body : end]))
            frames.append((message, tokens))
            del self._buffer[:end]
        return frames


def send(channel: socket.socket, message: Message, tokens: array[int] | None = None) -> None:
    """Send one frame on a blocking socket."""
    channel.sendall(encode(message, tokens))
