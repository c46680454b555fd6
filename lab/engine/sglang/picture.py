"""What can be said of a picture with the standard library alone: its size, and a PNG's main colour."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

COLOURS = {
    "red": (220, 30, 30), "green": (30, 170, 50), "blue": (30, 60, 220), "yellow": (240, 220, 40), "orange": (245, 140, 20),
    "purple": (130, 40, 160), "black": (0, 0, 0), "white": (255, 255, 255), "gray": (128, 128, 128), "cyan": (40, 210, 220),
    "pink": (250, 150, 190), "brown": (120, 75, 35),
}  # fmt: skip
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # PNG colour type -> samples a pixel


class NotAPicture(ValueError):
    """The bytes are no picture that a model could read."""


def load(url: str) -> bytes:
    """Return the bytes of a data URL; raises NotAPicture."""
    head, comma, body = url.partition(",")
    if not comma or not head.startswith("data:image/"):
        raise NotAPicture("the lab reads data:image/... URLs only")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise NotAPicture(str(error)) from error


def size(data: bytes) -> tuple[int, int]:
    """Return width and height of a PNG, GIF or JPEG; raises NotAPicture."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return int(width), int(height)
    if data[:4] == b"GIF8" and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
        return int(width), int(height)
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 < len(data):
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + length
    raise NotAPicture("cannot identify image file")


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))


def _rows(data: bytes) -> tuple[list[bytearray], int, bytes]:
    """Decode an 8-bit PNG into rows of samples; returns rows, samples a pixel, palette."""
    at, packed, palette = 8, b"", b""
    width, height = size(data)
    depth, kind = data[24], data[25]
    if depth != 8 or kind not in CHANNELS or width * height > 4_000_000:
        raise NotAPicture("only small 8-bit PNGs are looked at closely")
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        packed += body if name == b"IDAT" else b""
        palette = body if name == b"PLTE" else palette
        at += 12 + length
    plain = zlib.decompress(packed)
    channels = CHANNELS[kind]
    stride = width * channels
    rows: list[bytearray] = []
    before = bytearray(stride)
    for start in range(0, height * (stride + 1), stride + 1):
        method, row = plain[start], bytearray(plain[start + 1 : start + 1 + stride])
        for index in range(len(row)):
            left = row[index - channels] if index >= channels else 0
            up, corner = before[index], before[index - channels] if index >= channels else 0
            predicted = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[method]
            row[index] = (row[index] + predicted) & 255
        rows.append(row)
        before = row
    return rows, channels, palette


def main_colour(data: bytes) -> str:
    """Name the colour that most pixels of a PNG are near to; raises NotAPicture."""
    rows, channels, palette = _rows(data)
    votes: dict[str, int] = {}
    for row in rows:
        for index in range(0, len(row), channels * max(len(row) // channels // 64, 1)):
            pixel = tuple(row[index : index + 3]) if channels >= 3 else (row[index],) * 3
            if palette:
                pixel = tuple(palette[row[index] * 3 : row[index] * 3 + 3])
            name = min(COLOURS, key=lambda colour: sum((a - b) ** 2 for a, b in zip(COLOURS[colour], pixel, strict=False)))
            votes[name] = votes.get(name, 0) + 1
    return max(votes, key=lambda name: votes[name])


def describe(url: str) -> str:
    """Say in a sentence what the picture is."""
    data = load(url)
    width, height = size(data)
    try:
        return f"The image is {width} by {height} pixels and mostly {main_colour(data)}."
    except (NotAPicture, zlib.error, IndexError):
        return f"The image is {width} by {height} pixels."
