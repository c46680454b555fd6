"""A replaced neighbour runs again as its record says."""

from __future__ import annotations

import json
from dataclasses import asdict

from lodger.host import facts, paths
from lodger.host.command import Command, run
from lodger.host.facts.base import Facts
from lodger.states.base import Blocker
from lodger.states.neighbour_record import RecordedNeighbour
from lodger.states.neighbour_status import NeighbourStatus, not_back
from lodger.states.registry import state
from lodger.states.target import Target


@state("neighbour_restored", each="recorded neighbour", brings_back=True)
class NeighbourRestored(RecordedNeighbour):
    """The neighbour runs again as before Lodger replaced it; the record is removed."""

    def __init__(self, record: NeighbourStatus) -> None:
        """Take the record that NeighbourReplaced left on the host."""
        super().__init__(record.kind, record.name)
        self.name = f"neighbour_restored({record.name})"
        self._was = record
        self.deadline = 120.0

    @classmethod
    def of(cls, target: Target, item: NeighbourStatus) -> NeighbourRestored:
        """Return the state for ``item``."""
        del target
        return cls(item)

    def missing(self, read: Facts) -> str:
        """Return what is not as the record says, or that the record is still there."""
        missing = not_back(self._was, self._now(read))
        if missing:
            return missing
        return f"the record of {self._was.name} is still there" if read[facts.DEPLOYED].record(self._record) is not None else ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when the neighbour no longer exists."""
        if self._now(read) is not None:
            return []
        hint = f"its owner removed it; if it need not come back, run this on the host: rm {paths.VAR}/{self._record}"
        return [Blocker(f"the replaced {self._was.kind} {self._was.name} no longer exists", hint=hint)]

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that start it again; the last one removes the record."""
        back = self._was.bring_back() if not_back(self._was, self._now(read)) else []
        return [*back, run("rm", "-f", f"{paths.VAR}/{self._record}", why="remove its record")]

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        """Return the commands that record, stop and disable it again."""
        del before, now
        note = paths.write(
            f"{paths.VAR}/{self._record}", json.dumps(asdict(self._was)) + "\n", why=f"record how {self._was.name} ran before"
        )
        return [note, *self._was.take_down()]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: it is still running or enabled."""
        del before
        standing_now = self._now(now)
        return (
            ""
            if standing_now is None or standing_now.out_of_the_way
            else f"{self._was.name} is still {'running' if standing_now.active else 'enabled'}"
        )
