"""A YAML text as plain values with the line of each, and with every trap of YAML named instead of guessed at.

Only mappings, lists and scalars are understood. A scalar without quotes that different YAML readers take for different
values (``030000``, ``yes``, ``12:30``), anchors, tags, merge keys and repeated keys are mistakes here: what a person reads
in the file must be what the program reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.reader import ReaderError

Loc = tuple[str | int, ...]
"""Where a value is: mapping keys and list positions from the top of the document."""

_MAX_DEPTH = 32
_MAX_DIGITS = 20  # more digits than any value has; longer ones stay text and fail where a number is meant
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")
_TRAPS = (
    (re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?([eE][-+]?[0-9]+)?"), "has a leading zero, which some readers take for octal"),
    (re.compile(r"[-+]?0[xob][0-9a-fA-F_]+"), "is not a decimal number"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"), "has underscores, which only some readers take for a number"),
    (re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "is a number of base 60 to some readers"),
    (re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE), "is not a finite number"),
    (re.compile(r"yes|no|on|off|y|n", re.IGNORECASE), "is true or false to some readers and text to others"),
    (re.compile(r"True|TRUE|False|FALSE"), "is true or false to some readers and text to others"),
)


@dataclass(frozen=True)
class Problem:
    """One mistake in a document: its 1-based line, where it is, and what is wrong in one sentence."""

    line: int
    loc: Loc
    text: str


@dataclass
class Document:
    """The values of one YAML text; ``problems`` is empty when all of it was understood.

    A value with a problem of its own stands in ``data`` as the text that was read.
    """

    data: object = None
    lines: dict[Loc, int] = field(default_factory=dict)
    written: dict[Loc, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, loc: Loc) -> int:
        """Return the line of ``loc``, or of the nearest value around it that the text has."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def text(self, loc: Loc) -> str | None:
        """Return a scalar as it was written (a version ``1.10`` read as a number has lost its zero), or None."""
        return self.written.get(loc)


def read(raw: bytes) -> Document:
    """Read one YAML document; mistakes are returned in it, never raised."""
    doc = Document()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        doc.problems.append(Problem(line, (), f"is not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8"))
        return doc
    try:
        _Builder(doc).build(iter(YAML(typ="safe", pure=True).parse(text)))
    except _TooDeepError as error:
        doc.problems.append(Problem(error.line, (), f"is nested deeper than {_MAX_DEPTH} levels"))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = (mark.line if mark else 0) + 1
        doc.problems.append(Problem(line, (), f"is not YAML: {_explain(error)}"))
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        # ruamel.yaml declares a string here and raises with a number.
        code = error.character if isinstance(error.character, int) else ord(error.character)
        doc.problems.append(Problem(line, (), f"holds a character that YAML does not allow: U+{code:04X}"))
    except YAMLError as error:
        doc.problems.append(Problem(1, (), f"is not YAML: {error}"))
    return doc


def _explain(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context or "cannot be read")
    return "a tab; indent with spaces" if r"'\t'" in problem else problem


class _TooDeepError(Exception):
    def __init__(self, line: int) -> None:
        self.line = line


class _Builder:
    """Turns parse events into values; keeps going after each mistake that leaves the rest readable."""

    def __init__(self, doc: Document) -> None:
        self.doc = doc

    def build(self, events: Iterator[Event]) -> None:
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._problem(event, (), "holds a second document; one document a file")
                    return
                self.doc.data = self._value(next(events), events, ())

    def _line(self, event: Event) -> int:
        return int(event.start_mark.line) + 1

    def _problem(self, event: Event, loc: Loc, text: str) -> None:
        self.doc.problems.append(Problem(self._line(event), loc, text))

    def _value(self, event: Event, events: Iterator[Event], loc: Loc) -> object:
        if len(loc) > _MAX_DEPTH:
            raise _TooDeepError(self._line(event))
        # A key's line was noted before its value, which may begin on a later one.
        self.doc.lines.setdefault(loc, self._line(event))
        if isinstance(event, AliasEvent):
            self._problem(event, loc, f"is the alias *{event.anchor}: aliases are not used here; write the value out")
            return None
        assert isinstance(event, ScalarEvent | CollectionStartEvent)  # noqa: S101  # what else begins a value
        if event.anchor:
            self._problem(event, loc, f"has the anchor &{event.anchor}: anchors are not used here; write each value out")
        if event.tag is not None:
            self._problem(event, loc, f"has the tag {event.tag}: tags are not used here; quote text, leave numbers bare")
        if isinstance(event, ScalarEvent):
            return self._scalar(event, loc)
        return self._mapping(events, loc) if isinstance(event, MappingStartEvent) else self._sequence(events, loc)

    def _mapping(self, events: Iterator[Event], loc: Loc) -> dict[str, object]:
        result: dict[str, object] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                self._problem(event, loc, "has a key that is not plain text")
                if not isinstance(event, AliasEvent):
                    self._value(event, events, (*loc, "?"))
                self._value(next(events), events, (*loc, "?"))
                continue
            key = str(event.value)
            where = (*loc, key)
            if key in result:
                self._problem(event, where, f"is given twice, first on line {self.doc.lines[where]}; keep one")
                self._value(next(events), events, (*loc, f"{key} (again)"))
                continue
            self.doc.lines[where] = self._line(event)
            value = self._value(next(events), events, where)
            if key == "<<" and event.style is None:
                self._problem(event, where, "is a merge key: merge keys are not used here; write the values out")
                continue
            result[key] = value
        return result

    def _sequence(self, events: Iterator[Event], loc: Loc) -> tuple[object, ...]:
        result: list[object] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            result.append(self._value(event, events, (*loc, len(result))))
        return tuple(result)

    def _scalar(self, event: ScalarEvent, loc: Loc) -> object:
        text = str(event.value)
        if event.style is not None:
            return text
        self.doc.written[loc] = text
        if text in ("", "~", "null"):
            return None
        if text in ("true", "false"):
            return text == "true"
        for pattern, why in _TRAPS:
            if pattern.fullmatch(text):
                self._problem(event, loc, f'{text} without quotes {why}; {_advice(text)} or, as text, "{text}"')
                return text
        if _INT.fullmatch(text):
            return int(text) if len(text) <= _MAX_DIGITS else text
        if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
            return number
        return text


def _advice(text: str) -> str:
    lowered = text.lower()
    if lowered in ("yes", "on", "y", "true"):
        return "write true"
    if lowered in ("no", "off", "n", "false"):
        return "write false"
    digits = text.replace("_", "").lstrip("+").lstrip("0")
    return f"write {digits}" if digits.isdigit() else "write a plain decimal number"
