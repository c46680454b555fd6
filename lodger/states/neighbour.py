"""Neighbours that the inventory replaces: stopped and disabled, never deleted, and put back by the last rollback."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lodger import facts, paths
from lodger.command import Command, run
from lodger.errors import Refused
from lodger.facts import Fact, Facts
from lodger.footprint import Owner
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.standing import Reading, Standing, not_back


class _Neighbour(State):
    """What both directions share: the reading, the record, and who may be touched."""

    def __init__(self, kind: str, name: str) -> None:
        self._kind, self._name = kind, name
        self._reading = Reading(kind, name)
        self._record = f"replaced/{kind}-{name}.json"
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, self._reading.fact)
        self.undo_deadline = 120.0

    def _now(self, read: Facts) -> Standing | None:
        return self._reading.of(read)

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return under which names it may change: the unit, the container, or the project's containers."""
        now = self._now(read)
        return now.owners() if now is not None else frozenset()


class NeighbourReplaced(_Neighbour):
    """The neighbour is stopped and does not start by itself; a record on the host says how it stood."""

    def __init__(self, kind: str, name: str) -> None:
        """Take the neighbour's ``kind`` (unit, container, compose) and the ``name`` its manager calls it."""
        super().__init__(kind, name)
        self.name = f"neighbour_replaced({name})"
        self.provides = frozenset({f"no {kind} {name}"})
        self.deadline = 90.0

    def missing(self, read: Facts) -> str:
        """Return that the neighbour runs, or would run again."""
        now = self._now(read)
        if now is None or now.out_of_the_way:
            return ""
        return f"{self._name} is {'running' if now.active else 'enabled'}"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that it could not be put back."""
        return self._reading.blockers(read)

    def stops(self, read: Facts) -> list[str]:
        """Return the neighbour when it runs."""
        now = self._now(read)
        return [f"{self._kind} {self._name}"] if now is not None and now.active else []

    def act(self, read: Facts) -> list[Command]:
        """Return the record of how it stands (the first one stays), then stop and disable."""
        now = self._now(read)
        if now is None:
            return []
        known = read[facts.DEPLOYED].record(self._record) is not None
        note = paths.write(f"{paths.VAR}/{self._record}", json.dumps(asdict(now)) + "\n", why=f"note how {self._name} stands")
        return [*([] if known else [note]), *now.take_down()]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what brings the neighbour back to how it stood before."""
        del now
        was = self._now(before)
        if was is None:
            return NoUndo("it was not there")
        if before[facts.DEPLOYED].record(self._record) is not None:
            return was.bring_back()  # an earlier run's record: it is owed until the last rollback
        return [*was.bring_back(), run("rm", "-f", f"{paths.VAR}/{self._record}", why="the record is spent")]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what of the neighbour is not back."""
        return not_back(self._now(before), self._now(now))

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return that it was started again and has ended for good."""
        was = self._now(before)
        return self._reading.gave_up(now) if was is not None and was.active else ""


class NeighbourRestored(_Neighbour):
    """The neighbour stands again as the record says it stood before Lodger replaced it; the record is gone."""

    def __init__(self, record: Standing) -> None:
        """Take the record that NeighbourReplaced left on the host."""
        super().__init__(record.kind, record.name)
        self.name = f"neighbour_restored({record.name})"
        self._was = record
        self.deadline = 120.0

    def missing(self, read: Facts) -> str:
        """Return what is not as the record says; a record that still lies there counts too."""
        missing = not_back(self._was, self._now(read))
        if missing:
            return missing
        return f"the record of {self._was.name} is not spent" if read[facts.DEPLOYED].record(self._record) is not None else ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that the neighbour no longer exists."""
        if self._now(read) is not None:
            return []
        hint = f"its owner removed it; delete {paths.VAR}/{self._record} to say that nothing is owed"
        return [Blocker(f"the replaced {self._was.kind} {self._was.name} no longer exists", hint=hint)]

    def act(self, read: Facts) -> list[Command]:
        """Return what brings it back; the record is removed by the last command."""
        back = self._was.bring_back() if not_back(self._was, self._now(read)) else []
        return [*back, run("rm", "-f", f"{paths.VAR}/{self._record}", why="the record is spent")]

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        """Return what takes it out of the way again, record included."""
        del before, now
        note = paths.write(
            f"{paths.VAR}/{self._record}", json.dumps(asdict(self._was)) + "\n", why=f"note how {self._was.name} stood"
        )
        return [note, *self._was.take_down()]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that it still runs."""
        del before
        standing_now = self._now(now)
        return "" if standing_now is None or standing_now.out_of_the_way else f"{self._was.name} is still up"


def recorded(deployed: facts.Deployed) -> list[Standing]:
    """Return the records of replaced neighbours, in the order they are to be restored."""
    prefix = f"{paths.VAR}/replaced/"
    found = []
    for path in sorted(deployed.files):
        if path.startswith(prefix) and path.endswith(".json"):
            try:
                data = json.loads(deployed.files[path].content)
                found.append(Standing(**{**data, "running": tuple(data["running"])}))
            except (ValueError, TypeError, KeyError) as error:
                hint = "write it again as it was, or bring the neighbour back by hand and delete it"
                raise Refused(f"{path} is not the record of a neighbour", cause=str(error), hint=hint) from error
    return found
