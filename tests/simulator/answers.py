"""What an answer, a stream, a metric text or a log consists of: shapes, not values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]


# Strings that are chosen from few: the simulation may only say what some recording says.
ENUMERATED = {"object", "role", "type", "finish_reason", "owned_by", "status", "tool_choice"}
# Parts of an event that say what it is for by being null or not.
TELLING = {"reasoning_content", "content", "role", "finish_reason"}
# Labels whose values follow from the requests that were made, not from the engine.
REQUEST_LABELS = {"endpoint", "method", "status_code", "pid"}


@dataclass
class Answer:
    """A response, taken apart."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Return what the body is: json, events, metrics, text or empty."""
        content = {name.lower(): value for name, value in self.headers}.get("content-type", "")
        if content.startswith("text/event-stream"):
            return "events"
        if content.startswith("text/plain; version"):
            return "metrics"
        if content.startswith("application/json"):
            return "json"
        return "text" if self.body else "empty"


def parse(response: bytes) -> Answer:
    """Take a response apart."""
    head, _, body = response.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
    answer = Answer(int(lines[0].split(" ")[1]), headers, body)
    if ("transfer-encoding", "chunked") in [(name.lower(), value) for name, value in headers]:
        answer.chunks = list(_chunks(body))
        answer.body = b"".join(answer.chunks)
    return answer


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16) if re.fullmatch(rb"[0-9a-f]+", size) else 0
        if length == 0:
            return
        yield rest[:length]
        body = rest[length + 2 :]


# --- JSON


def type_name(value: Any) -> str:
    """Name a JSON type."""
    names = {dict: "object", list: "list", str: "string", bool: "bool", int: "int", float: "float", type(None): "null"}
    return names[type(value)]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every path with its value; elements of a list share the step `[]`."""
    yield path, value
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list):
        for child in value:
            yield from leaves(child, (*path, "[]"))


def shape(value: Any) -> dict[Path, set[str]]:
    """Return the types seen at each path."""
    found: dict[Path, set[str]] = {}
    for path, leaf in leaves(value):
        kinds = found.setdefault(path, set())
        kinds.add(type_name(leaf))
        if path and path[-1] in ENUMERATED and isinstance(leaf, str):
            kinds.add(f"={leaf}")
    return found


def written(path: Path) -> str:
    """Write a path."""
    return "$" + "".join(step if step == "[]" else f".{step}" for step in path)


# --- events


def event_values(answer: Answer) -> list[Any]:
    """Return the events of a stream, parsed; "[DONE]" stays a string. One that no blank line ends was cut off and is none."""
    found: list[Any] = []
    for block in answer.body.decode("utf-8", "replace").split("\n\n")[:-1]:
        if block.startswith("data: "):
            text = block[6:]
            found.append(text if text == "[DONE]" else json.loads(text))
    return found


def event_kind(event: Any) -> str:
    """Name an event by its keys, and by which parts of its delta are there."""
    if isinstance(event, str):
        return event
    parts = []
    for path, value in leaves(event):
        last = path[-1] if path else ""
        if last in TELLING or (last in ("id", "name") and "tool_calls" in path):
            parts.append(f"{written(path)}:{type_name(value)}")
        else:
            parts.append(written(path))
    return " ".join(sorted(set(parts)))


def collapsed(kinds: list[str]) -> list[str]:
    """Leave out repetitions."""
    return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]


def is_subsequence(short: list[str], long: list[str]) -> bool:
    """Say whether all of `short` comes in `long`, in order."""
    rest = iter(long)
    return all(kind in rest for kind in short)


# --- metrics


def families(text: str) -> dict[str, str]:
    """Return each metric's type and help, and each series with the labels whose values the engine decides."""
    found: dict[str, str] = {}
    helps = dict(line[7:].split(" ", 1) for line in text.splitlines() if line.startswith("# HELP "))
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            found[name] = f"{kind}: {helps.get(name, '')}"
        elif line and not line.startswith("#"):
            match = re.match(r"([\w:]+)(?:\{(.*)\})? \S+$", line)
            assert match, line
            labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
            shown = ",".join(f"{key}=*" if key in REQUEST_LABELS else f"{key}={value}" for key, value in labels)
            found[f"{match[1]}{{{shown}}}"] = "series"
    return found


# --- logs


def line_kind(line: str) -> str:
    """Reduce a log line to its grammar: numbers, addresses, paths, ids and lists lose their values."""
    text = re.sub(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP\d+)?\] ", "[T] ", line)
    if "server_args=ServerArgs(" in text:
        return "[T] server_args=ServerArgs(...)"
    text = re.sub(r"['\"]?[0-9a-f]{32}['\"]?", "ID", text)
    text = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?", "ADDR", text)
    text = re.sub(r"\[(?:\d+(?:, )?)+\]", "[N]", text)
    text = re.sub(r"\[?'?ID'?(?:, '?ID'?)*\]?", "ID", text) if "remaining_rids" in text else text
    text = re.sub(r"remaining_rids=\S+", "remaining_rids=IDS", text)
    text = re.sub(r"-?\d+(?:\.\d+)?", "N", text)
    text = re.sub(r"/(?:srv/sg/site|sgl-workspace/sglang/python)/", "/", text)
    text = re.sub(r"cuda graph: (?:True|False)", "cuda graph: B", re.sub(r" {2,}(?=\S)", " ", text))
    return re.sub(r"(?:/srv/sg|/tmp|/models)/[\w./-]+", "PATH", text)


def line_kinds(lines: list[str]) -> list[str]:
    """Return the different kinds of lines."""
    return list(dict.fromkeys(line_kind(line) for line in lines if line.strip()))
