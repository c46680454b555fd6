"""One comparer for everything recorded: what an answer, a stream, a metric text or a log consists of, and what differs.

It compares shapes, not values: status, header names and values that are not times or sizes, the keys and types of JSON,
kinds and order of server-sent events, metric families with types, help and labels, kinds of log lines. Of texts only those of errors.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]
SIZES = {"content-length", "date"}
# Strings that are chosen from few: the simulation may only say what some recording says.
ENUMERATED = {"object", "role", "type", "finish_reason", "owned_by", "status", "tool_choice"}
# Parts of an event that say what it is for by being null or not.
TELLING = {"reasoning_content", "content", "role", "finish_reason"}
# Labels whose values follow from the requests that were made, not from the engine.
REQUEST_LABELS = {"endpoint", "method", "status_code", "pid"}


@dataclass(frozen=True)
class Difference:
    """One thing that is not as recorded."""

    where: str
    field: str
    recorded: str
    simulated: str

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: recorded {self.recorded}, simulated {self.simulated}"


@dataclass(frozen=True)
class Exemption:
    """A difference that is meant: `where` and `field` are patterns, `reason` says why."""

    where: str
    field: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        """Say whether it explains a difference."""
        return bool(re.search(self.where, difference.where) and re.search(self.field, difference.field))


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


# --- comparing


@dataclass
class Union:
    """What the recordings of one kind of answer say together: a field that is null here may be a list there."""

    shapes: dict[Path, set[str]] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)

    def add(self, answer: Answer) -> None:
        """Take in a recorded (or simulated) answer."""
        values = event_values(answer) if answer.kind == "events" else [_json(answer)]
        for value in values:
            for path, types in shape(value).items():
                self.shapes.setdefault(path, set()).update(types)
        if answer.kind == "events":
            self.kinds.update(event_kind(value) for value in values)


def _json(answer: Answer) -> Any:
    return json.loads(answer.body) if answer.kind == "json" else None


def group_of(method: str, path: str, answer: Answer) -> str:
    """Name the kind of an answer: what is asked, whether it worked, how it comes."""
    path = path.partition("?")[0].replace("/get_server_info", "/server_info").replace("/get_model_info", "/model_info")
    return f"{method} {path} {answer.status // 100}xx {answer.kind}"


def unions(answers: list[tuple[str, str, Answer]]) -> dict[str, Union]:
    """Join answers by kind."""
    found: dict[str, Union] = {}
    for method, path, answer in answers:
        if answer.kind in ("json", "events"):
            found.setdefault(group_of(method, path, answer), Union()).add(answer)
    return found


def normal_message(text: str) -> str:
    """Reduce an error's text: token counts and the source's place differ."""
    text = re.sub(r"/(?:srv/sg/site|sgl-workspace/sglang/python)/", "/", text)
    return re.sub(r"The input \(\d+ tokens\)", "The input (N tokens)", text)


class Comparer:
    """Compares exchange by exchange, and remembers what it looked at and what was exempted."""

    def __init__(self, recorded: list[tuple[str, str, Answer]], exemptions: list[Exemption]):
        self.unions = unions(recorded)
        self.exemptions = exemptions
        self.exchanges: Counter[str] = Counter()
        self.fields: Counter[str] = Counter()
        self.exempted: Counter[str] = Counter()

    def filtered(self, differences: list[Difference]) -> list[Difference]:
        """Leave out what is exempted, and count it."""
        left = []
        for difference in differences:
            covering = next((each for each in self.exemptions if each.covers(difference)), None)
            if covering:
                self.exempted[covering.reason] += 1
            else:
                left.append(difference)
        return left

    def compare(self, source: str, name: str, method: str, path: str, recorded: Answer, simulated: Answer) -> list[Difference]:
        """Return what differs between a recorded answer and the simulation's."""
        self.exchanges[source] += 1
        found: list[Difference] = []

        def check(field_name: str, wanted: Any, seen: Any) -> None:
            self.fields[source] += 1
            if wanted != seen:
                found.append(Difference(name, field_name, str(wanted), str(seen)))

        check("status", recorded.status, simulated.status)
        check("headers", [each for each, _ in recorded.headers], [each for each, _ in simulated.headers])
        values = dict(simulated.headers)
        for header, value in recorded.headers:
            if header.lower() not in SIZES:
                check(f"header {header}", value, values.get(header))
        check("kind", recorded.kind, simulated.kind)
        if recorded.kind != simulated.kind:
            return self.filtered(found)
        group = self.unions.get(group_of(method, path, recorded), Union())
        if recorded.kind == "json":
            self._json(check, group, json.loads(recorded.body), json.loads(simulated.body), recorded.status)
        elif recorded.kind == "events":
            self._events(check, group, recorded, simulated)
        elif recorded.kind == "metrics":
            self._metrics(check, recorded.body.decode(), simulated.body.decode())
        elif recorded.kind == "text":
            check("text", recorded.body, simulated.body)
        return self.filtered(found)

    def _json(self, check: Any, group: Union, recorded: Any, simulated: Any, status: int) -> None:
        wanted, seen = shape(recorded), shape(simulated)
        for path in wanted:
            # A child is expected where its parent holds anything: {} and [] have none, null has none.
            parent = path[:-1]
            if path in seen:
                check(f"{written(path)} type", [], sorted(seen[path] - group.shapes[path]))
            elif parent in seen and self._holds(simulated, parent, path):
                check(written(path), "there", "missing")
        for path in seen:
            if path not in wanted:
                check(f"{written(path)} extra", True, path in group.shapes and not seen[path] - group.shapes[path])
        if status >= 400 and isinstance(recorded, dict):
            for key in ("message", "type", "code", "detail", "error"):
                if isinstance(recorded.get(key), str | int):
                    check(f"$.{key} text", normal_message(str(recorded[key])), normal_message(str(simulated.get(key))))

    @staticmethod
    def _holds(value: Any, parent: Path, path: Path) -> bool:
        """Say whether the parent is a container that should have this child: an object always, a list when it has elements."""
        found = [leaf for each, leaf in leaves(value) if each == parent]
        if path[-1] == "[]":
            return any(isinstance(leaf, list) and leaf for leaf in found)
        return any(isinstance(leaf, dict) for leaf in found)

    def _events(self, check: Any, group: Union, recorded: Answer, simulated: Answer) -> None:
        wanted, seen = event_values(recorded), event_values(simulated)
        kinds, seen_kinds = [event_kind(each) for each in wanted], [event_kind(each) for each in seen]
        for kind in dict.fromkeys(kinds):
            check(f"event <{kind}>", "there", "there" if kind in seen_kinds else "missing")
        check("order of events", True, is_subsequence(collapsed(kinds), collapsed(seen_kinds)))
        for kind in dict.fromkeys(seen_kinds):
            check(f"event <{kind}> extra", True, kind in group.kinds)
        types: dict[Path, set[str]] = {}
        for event in seen:
            for path, kinds_there in shape(event).items():
                types.setdefault(path, set()).update(kinds_there)
        for path, found in types.items():
            if path in group.shapes:
                check(f"event {written(path)} type", [], sorted(found - group.shapes[path]))
        for side, answer in (("recorded", recorded), ("simulated", simulated)):
            whole = all(chunk.endswith(b"\n\n") and chunk.startswith(b"data: ") for chunk in answer.chunks)
            check(f"one event a chunk ({side})", True, whole)

    def _metrics(self, check: Any, recorded: str, simulated: str) -> None:
        wanted, seen = families(recorded), families(simulated)
        trimmed = 'le="0.' not in recorded
        for name, value in wanted.items():
            check(f"metric {name}", value, seen.get(name, "missing"))
        for name in seen:
            family = re.sub(r"(_sum|_bucket|_count)?(\{.*)?$", "", name)
            if name not in wanted and not (trimmed and "_bucket{" in name):
                known = any(family == re.sub(r"(_sum|_bucket|_count)?(\{.*)?$", "", each) for each in wanted)
                check(f"metric {name} extra", True, known)

    def coverage(self, simulated: list[tuple[str, str, Answer]]) -> list[Difference]:
        """Return what the recordings show at least once and the simulation never does (a list where it only says null)."""
        found = []
        ours = unions(simulated)
        for group, recorded in self.unions.items():
            seen = ours.get(group, Union())
            for path, types in recorded.shapes.items():
                missing = types - seen.shapes.get(path, set())
                self.fields["over all"] += 1
                if missing:
                    found.append(
                        Difference(f"all {group}", f"{written(path)} ever", str(sorted(types)), f"never {sorted(missing)}")
                    )
        return self.filtered(found)

    def logs(self, name: str, recorded: list[str], simulated: list[str]) -> list[Difference]:
        """Return the kinds of lines that were recorded and are not in the simulation's log."""
        return self.log_kinds(name, line_kinds(recorded), set(line_kinds(simulated)))

    def log_kinds(self, name: str, recorded: list[str], seen: set[str]) -> list[Difference]:
        """Compare kinds of log lines."""
        found = []
        for kind in recorded:
            self.fields[f"log lines of {name}"] += 1
            if kind not in seen:
                found.append(Difference(name, f"line {kind}", "there", "missing"))
        return self.filtered(found)


# --- mutations: the same answer with one thing taken out


def without_header(answer: Answer, name: str) -> Answer:
    """Leave a header out."""
    return Answer(answer.status, [each for each in answer.headers if each[0] != name], answer.body, answer.chunks)


def without_path(answer: Answer, path: Path) -> Answer:
    """Leave a JSON field out, in every element that has it."""
    value = copy.deepcopy(json.loads(answer.body))
    _remove(value, path)
    return Answer(answer.status, answer.headers, json.dumps(value).encode())


def _remove(value: Any, path: Path) -> None:
    if isinstance(value, list) and path[0] == "[]":
        for child in value:
            _remove(child, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        if len(path) == 1:
            del value[path[0]]
        else:
            _remove(value[path[0]], path[1:])


def without_event_path(answer: Answer, kind: str, path: Path) -> Answer:
    """Leave a field out of every event of a kind; an empty path leaves the events out."""
    kept = []
    for event in event_values(answer):
        if event_kind(event) == kind and not path:
            continue
        changed = copy.deepcopy(event)
        if event_kind(event) == kind:
            _remove(changed, path)
        kept.append(b"data: " + (changed if isinstance(changed, str) else json.dumps(changed)).encode() + b"\n\n")
    return Answer(answer.status, answer.headers, b"".join(kept), kept)


def without_metric(answer: Answer, name: str) -> Answer:
    """Leave a metric family out."""
    text = "\n".join(
        line
        for line in answer.body.decode().splitlines()
        if not re.match(rf"(# (HELP|TYPE) )?{re.escape(name)}(_sum|_bucket|_count)?[ {{]", line)
    )
    return Answer(answer.status, answer.headers, text.encode() + b"\n", answer.chunks)
