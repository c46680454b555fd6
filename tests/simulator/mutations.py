"""The same answer with one thing taken out, to see that it is missed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .answers import Answer, Path, event_kind, event_values, families, leaves, written
from .recordings import Pair


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


def mutations(pair: Pair) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield, for each thing the simulation's answer consists of, its name and how to make the answer without it."""
    answer = pair.simulated
    for name, _ in answer.headers:
        if not pair.name.startswith("router/"):  # the router in between wrote those
            yield f"header {name}", partial(without_header, answer, name)
    if answer.kind == "json":
        for path in dict.fromkeys(path for path, _ in leaves(json.loads(answer.body)) if path and path[-1] != "[]"):
            yield written(path), partial(without_path, answer, path)
    elif answer.kind == "events":
        kinds: dict[str, Any] = {}
        for event in event_values(answer):
            kinds.setdefault(event_kind(event), event)
        for kind, event in kinds.items():
            yield f"event <{kind}>", partial(without_event_path, answer, kind, ())
            for path in dict.fromkeys(path for path, _ in leaves(event) if path and path[-1] != "[]"):
                yield f"event <{kind}> {written(path)}", partial(without_event_path, answer, kind, path)
    elif answer.kind == "metrics":
        for name in families(answer.body.decode()):
            if "{" not in name and name.startswith("sglang:"):
                yield f"metric {name}", partial(without_metric, answer, name)
    elif answer.body:
        yield "text", partial(Answer, answer.status, answer.headers, b"")
