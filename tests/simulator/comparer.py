"""One comparer for everything recorded: what differs between the real engine's answers and the simulation's.

It compares shapes, not values: status, header names and values that are not times or sizes, the keys and types of JSON,
kinds and order of server-sent events, metric families with types, help and labels, kinds of log lines. Of texts only those of errors.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .answers import (
    Answer,
    Path,
    collapsed,
    event_kind,
    event_values,
    families,
    is_subsequence,
    leaves,
    line_kinds,
    shape,
    written,
)

SIZES = {"content-length", "date"}


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
