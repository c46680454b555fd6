"""What this run stopped of a neighbour runs again."""

from __future__ import annotations

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner
from lodger.states.base import NoUndo, State
from lodger.states.neighbour_status import NeighbourFacts, NeighbourStatus
from lodger.states.registry import state
from lodger.states.stopped import WARM, not_running, stopped_by_run, without_gpu
from lodger.states.target import Target


@state("neighbour_resumed", each="pausable neighbour", brings_back=True)
class NeighbourResumed(State):
    """What this run stopped of a neighbour runs again, on its GPUs; what did not run before is left alone."""

    def __init__(self, kind: str, name: str) -> None:
        """Take ``kind`` and ``name``."""
        self.name = f"neighbour_resumed({name})"
        self._reading = NeighbourFacts(kind, name)
        self._id = f"{kind} {name}"
        self.facts = (facts.LEDGER, self._reading.fact, *facts.FOOTPRINT)
        self.deadline = WARM
        self.undo_deadline = 120.0

    @classmethod
    def of(cls, target: Target, item: Owner) -> NeighbourResumed:
        """Return the state for ``item``."""
        del target
        return cls(item.kind, item.name)

    def _was(self, read: Facts) -> NeighbourStatus | None:
        stopped, before = stopped_by_run(read)
        return self._reading.of(before) if before is not None and self._id in stopped else None

    def missing(self, read: Facts) -> str:
        """Return what is not running again."""
        _, before = stopped_by_run(read)
        was = self._was(read)
        return not_running(was, self._reading.of(read)) or without_gpu(was, before, read)

    def act(self, read: Facts) -> list[Command]:
        """Return the start of what ran before."""
        was = self._was(read)
        return was.start() if was is not None else []

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return the owners that it may stop or start."""
        now = self._reading.of(read)
        return now.owners() if now is not None else frozenset()

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the stop: the undo of earlier states needs its GPUs."""
        del before
        standing = self._reading.of(now)
        return standing.stop() if standing is not None and standing.active else NoUndo("it does not run")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: it is still running."""
        del before
        standing = self._reading.of(now)
        return f"{standing.name} is still running" if standing is not None and standing.active else ""
