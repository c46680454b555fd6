"""A plan: what one run is to establish on one host, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lodger.host.facts.base import Fact
from lodger.states.base import Step


@dataclass(frozen=True)
class Plan:
    """What a run is to establish on ``host``: ``steps`` in order.

    ``reads`` are facts that are read besides those of the steps. ``params`` go into the ledger: what a later run needs to
    know to resume this one. ``remarks`` are lines for whoever reads plan or report.
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
