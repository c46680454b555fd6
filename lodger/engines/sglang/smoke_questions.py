"""What the smoke test asks: sums, a picture, a tool, and prompts that are too long or really long."""

from __future__ import annotations

import base64
import random
import re
import secrets
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from lodger.engines.sglang.smoke_judgements import TOOL_NAME, Expectation

# Questions whose answers are known: numbers come out wrong when weights, quantization or all-reduce are broken while the
# text still looks like language. Asked without thinking and at temperature 0, so that the same engine answers the same.
SUMS = (("17 + 25", "42"), ("9 * 8", "72"), ("100 - 58", "42"), ("60 / 4", "15"))

TOOL = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Tell the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "the city's name"}},
            "required": ["city"],
        },
    },
}

# 40 decode steps pass before the engine reports an accept length, 8 tokens each at best: 320, and some to spare.
STREAM_TOKENS = 400
THINK_TOKENS = 1024
# Side by side: one prompt that is really long and some company, 28,000 tokens in all, 11 s of reading.
SOAK_TOKENS = (16000, 4000, 4000, 4000)


@dataclass(frozen=True)
class Questions:
    """The requests of one smoke test."""

    expect: Expectation

    def sum(self, question: str) -> dict[str, Any]:
        """Return a question whose answer is known."""
        return self._chat(f"How much is {question}? Be brief.", 64)

    def thinking(self) -> dict[str, Any]:
        """Return one that wants reasoning."""
        return self._chat("How much is 12 + 30? Think, then answer briefly.", THINK_TOKENS, thinking=True)

    def tool_call(self) -> dict[str, Any]:
        """Return one that only a tool can answer."""
        return {**self._chat("What is the weather in Paris? Call the tool.", 256), "tools": [TOOL], "tool_choice": "auto"}

    def image(self) -> dict[str, Any]:
        """Return one about a red picture."""
        url = "data:image/png;base64," + base64.b64encode(png(128, (255, 0, 0))).decode()
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "Which colour is this picture? Answer with one word."},
        ]
        return self._chat(parts, 64)

    def overlong(self, longest: int) -> dict[str, Any]:
        """Return a prompt that no context of ``longest`` tokens holds."""
        # Every word is a token at least, whatever the tokenizer; a tenth more than the context can hold.
        return self._chat(self._words("overlong", longest + longest // 10 + 64), 8)

    def stream(self) -> dict[str, Any]:
        """Return one with a long answer."""
        return self._chat("Explain in at least 500 words how the prefix cache of a language model server works.", STREAM_TOKENS)

    def soak(self, code: str, tokens: int) -> dict[str, Any]:
        """Return a prompt of some ``tokens`` with ``code`` in its middle, and ask for the code."""
        half = min(tokens, self.expect.context_length // 4) // 2
        text = f"{self._words('soak', half)} The secret code is {code}. {self._words('on', half)}"
        return self._chat(f"{text}\n\nAnswer briefly: what is the secret code in the text above?", 64)

    def _words(self, purpose: str, count: int) -> str:
        # Never the same beginning twice: the prefix cache would hide what a long prompt costs.
        words = random.choices(_WORDS, k=count)  # noqa: S311  (to be read, nothing secret)
        return f"[{purpose} {secrets.token_hex(8)}] {' '.join(words)}"

    def _chat(self, content: str | list[dict[str, Any]], max_tokens: int, *, thinking: bool = False) -> dict[str, Any]:
        return {
            "model": self.expect.served_name,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }


_WORDS = re.findall(
    r"\w+",
    "river stone window garden paper yellow morning travel simple winter bridge copper letter market silver doctor island "
    "planet coffee engine forest mirror number orange pencil rocket school summer ticket valley harbour candle",
)


def png(size: int, colour: tuple[int, int, int]) -> bytes:
    """Return a square picture of one colour as PNG; ``size`` in pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\x00" + bytes(colour) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * size)) + chunk(b"IEND", b"")
