"""One run while it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lodger.host.facts.base import Facts
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult
from lodger.run.plan import Plan


@dataclass
class Progress:
    """Where a run of ``plan`` is.

    ``before`` is how the first try found the host. ``stale``: something was done since the first reading. ``begun``: a ledger
    is on the host. ``boot``: the boot id that the states so far count on. ``worked``: the groups of steps in which a state
    was established.
    """

    plan: Plan
    before: Facts
    ledger: Ledger
    result: RunResult
    stale: bool = False
    begun: bool = False
    boot: str = ""
    worked: set[tuple[int, str]] = field(default_factory=set)

    def knows(self, names: Iterable[str]) -> bool:
        """Return whether each of the states ``names`` is one of this run's."""
        return set(names) <= {step.state.name for step in self.plan.steps}


class Booted(Exception):
    """The host has booted in mid run: what was established before may hold no longer."""
