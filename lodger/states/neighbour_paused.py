"""A neighbour that may be paused does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.neighbour_status import NeighbourFacts
from lodger.states.registry import state
from lodger.states.stopped import Reached, not_running
from lodger.states.target import Target


@state("neighbour_paused", each="pausable neighbour", undo_brings_back=True)
class NeighbourPaused(State):
    """A neighbour that may be paused does not run, stopped through its owner, until the goal is reached."""

    def __init__(self, kind: str, name: str, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take ``kind`` and ``name``, and the goal: its predicate and the facts it reads."""
        self.name = f"neighbour_paused({name})"
        self._reading, self._reached = NeighbourFacts(kind, name), reached
        self.facts = (self._reading.fact, *reads)
        self.deadline = self.undo_deadline = 120.0
        self._id = f"{kind} {name}"

    @classmethod
    def of(cls, target: Target, item: Owner) -> NeighbourPaused:
        """Return the state for ``item``."""
        return cls(item.kind, item.name, target.goal.reached, target.goal.reads)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: it is running."""
        now = self._reading.of(read)
        return f"{now.name} is running" if now is not None and now.active and not self._reached(read) else ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when it could not be started again."""
        return self._reading.blockers(read)

    def stops(self, read: Facts) -> list[str]:
        """Return the neighbour."""
        del read
        return [self._id]

    def act(self, read: Facts) -> list[Command]:
        """Return the stop."""
        now = self._reading.of(read)
        return now.stop() if now is not None else []

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return the owners that it may stop or start."""
        now = self._reading.of(read)
        return now.owners() if now is not None else frozenset()

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the start of what ran before."""
        del now
        was = self._reading.of(before)
        return was.start() if was is not None and was.active else NoUndo("it did not run")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what is not running again."""
        return not_running(self._reading.of(before), self._reading.of(now))

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why waiting cannot help: it was started again and its manager gave up."""
        del before
        return self._reading.gave_up(now)
