"""A stand-in for the tokenizer: pieces that join to the text again, and a stable number for each."""

from __future__ import annotations

import re
import zlib
from array import array
from functools import lru_cache

PIECE = re.compile(
    r"<\|[a-z_]+\|>|</?(?:think|tool_call|tool_response)>| ?[A-Za-z\u00c0-\u024f]{1,8}|\d| ?[^\w\s]{1,3}|\s+|.", re.DOTALL
)


def split(text: str) -> list[str]:
    """Cut a text into token-sized pieces: about four characters of English, one of Chinese, one digit."""
    return PIECE.findall(text)


@lru_cache(maxsize=16384)
def _number(piece: str) -> int:
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def encode(pieces: list[str], vocabulary: int) -> array[int]:
    """Return the pieces' token numbers."""
    return array("I", [_number(piece) % vocabulary for piece in pieces])
