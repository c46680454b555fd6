"""A neighbour is stopped and disabled; a record says how it ran before."""

from __future__ import annotations

import json
from dataclasses import asdict

from lodger.host import facts, paths
from lodger.host.command import Command, run
from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner
from lodger.states.base import Blocker, NoUndo
from lodger.states.neighbour_record import RecordedNeighbour
from lodger.states.neighbour_status import not_back
from lodger.states.registry import state
from lodger.states.target import Target


@state("neighbour_replaced", each="replaced neighbour", undo_brings_back=True)
class NeighbourReplaced(RecordedNeighbour):
    """The neighbour is stopped and does not start by itself; a record on the host says how it ran before."""

    def __init__(self, kind: str, name: str) -> None:
        """Take the neighbour's ``kind`` (unit, container, compose) and the ``name`` its manager calls it."""
        super().__init__(kind, name)
        self.name = f"neighbour_replaced({name})"
        self.provides = frozenset({f"no {kind} {name}"})
        self.deadline = 90.0

    @classmethod
    def of(cls, target: Target, item: Owner) -> NeighbourReplaced:
        """Return the state for ``item``."""
        del target
        return cls(item.kind, item.name)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: the neighbour is running or enabled."""
        now = self._now(read)
        if now is None or now.out_of_the_way:
            return ""
        return f"{self._name} is {'running' if now.active else 'enabled'}"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when it could not be started again."""
        return self._reading.blockers(read)

    def stops(self, read: Facts) -> list[str]:
        """Return the neighbour when it runs."""
        now = self._now(read)
        return [f"{self._kind} {self._name}"] if now is not None and now.active else []

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that record how it runs (an earlier record stays), then stop and disable it."""
        now = self._now(read)
        if now is None:
            return []
        known = read[facts.DEPLOYED].record(self._record) is not None
        note = paths.write(
            f"{paths.VAR}/{self._record}", json.dumps(asdict(now)) + "\n", why=f"record how {self._name} runs now"
        )
        return [*([] if known else [note]), *now.take_down()]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that start and enable the neighbour as before."""
        del now
        was = self._now(before)
        if was is None:
            return NoUndo("it was not there")
        if before[facts.DEPLOYED].record(self._record) is not None:
            return was.bring_back()  # an earlier run's record: the last rollback needs it
        return [*was.bring_back(), run("rm", "-f", f"{paths.VAR}/{self._record}", why="remove its record")]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what of the neighbour is not as before."""
        return not_back(self._now(before), self._now(now))

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why waiting cannot help: it was started again and its manager gave up."""
        was = self._now(before)
        return self._reading.gave_up(now) if was is not None and was.active else ""
