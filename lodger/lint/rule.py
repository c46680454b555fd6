"""What a rule is: a function with its number, its gravity, and inventories in which it must and must not fire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lodger.lint.location import Location
from lodger.lint.view import View


class Severity(StrEnum):
    """How grave: an error is refused before a host is contacted, a warning is told, a note explains."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the gravest."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Hit:
    """What a rule found: where, one sentence why it breaks, and what to write instead."""

    place: Location
    reason: str
    instead: str


Find = Callable[[View], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """A numbered rule. ``bad`` and ``good`` are changes to an inventory in which nothing is wrong: the rule's own tests."""

    number: str
    severity: Severity
    find: Find
    bad: tuple[str, ...]
    good: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return (self.find.__doc__ or "").splitlines()[0]


class Rules(dict[str, Rule]):
    """Rules by number."""

    def rule(self, number: str, severity: Severity, *, bad: Sequence[str], good: Sequence[str]) -> Callable[[Find], Find]:
        """Register a function as the rule ``number``."""

        def register(find: Find) -> Find:
            assert number not in self, f"{number} is taken"  # noqa: S101  a mistake of the programmer
            self[number] = Rule(number, severity, find, tuple(bad), tuple(good))
            return find

        return register


RULES = Rules()
"""Those that are no engine's."""

rule = RULES.rule
