"""From a chat request to the tokens of its prompt and of its answer, and from counted tokens to deltas and messages."""

from __future__ import annotations

import json
import uuid
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from . import text
from .reply import Answer, long_text, text_of

IMAGE_TOKENS = 256  # what a picture of the usual size costs in the prompt
# Parsers that read <think> and the XML calls of this model family; `auto` resolves to the fitting one.
THINK_PARSERS = {"auto", "qwen3", "qwen3-thinking", "deepseek-r1", "glm45", "interns1", "nemotron_3", "step3"}
CALL_PARSERS = {"auto", "qwen3_coder"}


@dataclass
class Piece:
    """One token of the answer: its text, and as what it reaches the client.

    `kind` is content, reasoning, hidden (a tag that a parser eats) or call (with the events it completes).
    """

    text: str
    kind: str
    events: list[dict[str, Any]] = field(default_factory=list)


@lru_cache(maxsize=1)
def _filler() -> tuple[Piece, ...]:
    """Return what is said over and over by an answer that may not end; shared, for it may be long."""
    return tuple(_plain_pieces(" " + long_text(0, 100), "content"))


@dataclass
class Script:
    """The whole answer before the first token is sent: pieces, why it ends, what ended it.

    `tokens` is what usage counts: the end token counts although it has no text, and an answer that was told to ignore its end
    goes on with filler.
    """

    pieces: list[Piece]
    finish: str
    matched: int | str | None
    tokens: int
    endless: bool = False

    def between(self, before: int, after: int) -> list[Piece]:
        """Return the pieces of a range of tokens."""
        found = self.pieces[before:after]
        filler = _filler() if self.endless else ()
        rest = range(max(before, len(self.pieces)) - len(self.pieces), after - len(self.pieces)) if filler else ()
        return found + [filler[at % len(filler)] for at in rest]

    def output(self, vocabulary: int, eos: int) -> array[int]:
        """Return the token numbers of the answer, without the filler."""
        numbers = text.encode([piece.text for piece in self.pieces], vocabulary)
        if self.tokens > len(self.pieces):
            numbers.append(eos)
        return numbers

    def shown(self, kind: str) -> str:
        """Return the answer's whole text of one kind."""
        return "".join(piece.text for piece in self.between(0, self.tokens) if piece.kind == kind)


def prompt(messages: list[dict[str, Any]], tools: list[dict[str, Any]], thinking: bool, pictures: int) -> list[str]:
    """Render a conversation as this model family's template does; returns its pieces."""
    parts: list[str] = []
    for index, message in enumerate(messages):
        body = text_of(message.get("content")) + "".join(_call_text(call) for call in message.get("tool_calls") or [])
        role = message.get("role", "user")
        head = ""
        if index == 0 and tools:
            listing = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            head = f"# Tools\n\nYou have access to the following functions:\n\n<tools>\n{listing}\n</tools>\n\n"
            if role != "system":
                parts.append(f"<|im_start|>system\n{head}<|im_end|>\n")
                head = ""
        if role == "tool":
            role, body = "user", f"<tool_response>\n{body}\n</tool_response>"
        parts.append(f"<|im_start|>{role}\n{head}{body}<|im_end|>\n")
    parts.append("<|im_start|>assistant\n" + ("" if thinking else "<think>\n\n</think>\n\n"))
    pieces = text.split("".join(parts))
    if pictures:
        pieces[3:3] = [f"<|image_{index}|>" for index in range(pictures * IMAGE_TOKENS)]
    return pieces


def _call_text(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    return f"\n<tool_call>\n<function={function.get('name')}>\n{function.get('arguments')}\n</function>\n</tool_call>"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain_pieces(body: str, kind: str) -> list[Piece]:
    return [Piece(piece, kind) for piece in text.split(body)]


def _call_pieces(index: int, name: str, arguments: dict[str, Any], parsed: bool) -> list[Piece]:
    """Write a call in the model's own XML; parsed, its name and arguments reach the client as they are completed."""
    kind = "call" if parsed else "content"
    opening = _plain_pieces(f"<tool_call>\n<function={name}>\n", kind)
    opening[-1].events = [_named(index, name)]
    pieces = opening
    for number, (key, value) in enumerate(arguments.items()):
        parameter = _plain_pieces(f"<parameter={key}>\n{_value(value)}\n</parameter>\n", kind)
        fragment = ("{" if number == 0 else ", ") + f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        parameter[-1].events = [_argument(index, fragment)]
        pieces += parameter
    closing = _plain_pieces("</function>\n</tool_call>", kind)
    closing[0].events = [_argument(index, "}" if arguments else "{}")]
    return pieces + closing


def _forced_pieces(index: int, name: str, arguments: dict[str, Any]) -> list[Piece]:
    """Write a call that the grammar forced: JSON from the first token, whatever parser is set."""
    body = json.dumps(arguments, ensure_ascii=False)
    pieces = [Piece(piece, "call", [_argument(index, piece)]) for piece in text.split(body)]
    return [Piece("[", "call", [_named(index, name)]), *pieces, Piece("]", "call")]


def _named(index: int, name: str) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "index": index,
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }


def _argument(index: int, fragment: str) -> dict[str, Any]:
    return {"id": None, "index": index, "type": "function", "function": {"name": None, "arguments": fragment}}


@dataclass(frozen=True)
class Parsing:
    """What of the answer is told apart: by the parsers that are set, and what the request asked for."""

    reasoning: bool
    calls: bool
    forced: bool = False


def pieces_of(answer: Answer, thinking: bool, parsing: Parsing) -> list[Piece]:
    """Write an answer token by token."""
    pieces: list[Piece] = []
    if thinking:
        tag = "hidden" if parsing.reasoning else "content"
        pieces += _plain_pieces("<think>\n", tag)
        pieces += _plain_pieces(answer.reasoning, "reasoning" if parsing.reasoning else "content")
        pieces += _plain_pieces("\n</think>\n\n", tag)
    pieces += _plain_pieces(answer.content, "content")
    for index, (name, arguments) in enumerate(answer.calls):
        pieces += (
            _forced_pieces(index, name, arguments) if parsing.forced else _call_pieces(index, name, arguments, parsing.calls)
        )
    return pieces


@dataclass(frozen=True)
class Limits:
    """When an answer has to end."""

    tokens: int
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    eos: int = 0


def script(pieces: list[Piece], limits: Limits) -> Script:
    """Cut an answer to its limits, and say why it ends."""
    endless = limits.ignore_eos and len(pieces) < limits.tokens
    stop = _first_stop([*pieces, *_filler()] if endless else pieces, limits.stops)
    if stop is not None and stop[0] < limits.tokens:
        index, at, word = stop
        cut, start = [], 0
        for piece in [*pieces, *_filler()][: index + 1]:
            cut.append(Piece(piece.text[: max(at - start, 0)], piece.kind, piece.events))
            start += len(piece.text)
        return Script(cut, "stop", word, len(cut))
    if endless:
        return Script(pieces, "length", None, limits.tokens, endless=True)
    if len(pieces) + 1 > limits.tokens:
        cut = pieces[: limits.tokens]
        return Script(cut, "length", None, len(cut))
    called = any(piece.kind == "call" for piece in pieces)
    return Script(pieces, "tool_calls" if called else "stop", None if called else limits.eos, len(pieces) + 1)


def _first_stop(pieces: list[Piece], stops: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Return (piece that completes it, where it begins, stop string) of the earliest stop."""
    if not any(stops):
        return None
    whole = "".join(piece.text for piece in pieces)
    found = [(whole.find(stop), stop) for stop in stops if stop and stop in whole]
    if not found:
        return None
    at, word = min(found)
    end, start = at + len(word), 0
    for index, piece in enumerate(pieces):
        if start + len(piece.text) >= end:
            return index, at, word
        start += len(piece.text)
    return None


def calls_of(pieces: list[Piece]) -> list[dict[str, Any]] | None:
    """Join the events of a finished answer into its tool_calls; None when there is none."""
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        for event in piece.events if piece.kind == "call" else []:
            if event["index"] not in calls:
                calls[event["index"]] = {**event, "function": {**event["function"]}}
            else:
                calls[event["index"]]["function"]["arguments"] += event["function"]["arguments"]
    return list(calls.values()) or None
