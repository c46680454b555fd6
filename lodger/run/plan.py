"""A plan: the states that one run establishes on one host, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lodger.host.facts.base import Fact
from lodger.states.base import Step


@dataclass(frozen=True)
class Plan:
    """The states that a run establishes on ``host``: ``steps`` in order.

    ``reads`` are facts to read besides those of the steps. ``params`` go into the ledger: what a later run needs to continue
    this one. ``remarks`` are lines for plan and report.
    """

    runbook: str
    host: str
    steps: Sequence[Step] = ()
    reads: tuple[Fact[Any], ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """Every fact that the plan and its states ask for, each once."""
        return tuple(dict.fromkeys((*self.reads, *facts_of(self.steps))))


def facts_of(steps: Sequence[Step]) -> tuple[Fact[Any], ...]:
    """Return every fact that the states of ``steps`` ask for, for their undo too."""
    return tuple(fact for step in steps for fact in (*step.state.facts, *step.state.undo_facts))
