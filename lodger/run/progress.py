"""The progress of one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lodger.host.facts.base import Facts
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult
from lodger.run.plan import Plan


@dataclass
class Progress:
    """How far a run of ``plan`` is.

    ``before`` has the facts from before the first change, by this run or the one it continues. ``stale``: something was done
    since the first reading. ``begun``: a ledger is on the host. ``boot``: the boot id in which the states so far were
    established. ``worked``: the groups of steps in which a state was established.
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
    """The host has rebooted during the run: earlier states may no longer hold."""
