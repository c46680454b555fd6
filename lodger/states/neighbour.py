"""Neighbours that the inventory replaces: stopped and disabled, never deleted, and put back by the last rollback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lodger import facts, paths
from lodger.command import Command, run
from lodger.errors import Refused
from lodger.facts import Fact, Facts
from lodger.footprint import Owner
from lodger.states.base import Blocker, NoUndo, State

PROJECT = "com.docker.compose.project"


@dataclass(frozen=True)
class Standing:
    """How a neighbour stands: ``members`` are container -> restart policy, those of ``running`` are up; a unit has neither."""

    kind: str
    name: str
    active: bool = False
    enabled: bool = False
    members: dict[str, str] = field(default_factory=dict)
    running: tuple[str, ...] = ()

    @property
    def out_of_the_way(self) -> bool:
        """Whether it is stopped and will not start by itself."""
        return not self.active and not self.enabled

    def bring_back(self) -> list[Command]:
        """Return what makes the neighbour stand like this again, through its own manager."""
        if self.kind == "unit":
            verb = ["enable"] if self.enabled else []
            commands = [run("systemctl", verb[0], self.name, why=f"enable {self.name} again")] if verb else []
            return [
                *commands,
                *([run("systemctl", "start", self.name, why=f"start {self.name} again", timeout=300)] if self.active else []),
            ]
        update = [
            run("docker", "update", f"--restart={policy}", name, why=f"give {name} its restart policy back")
            for name, policy in self.members.items()
        ]
        return [*update, *(run("docker", "start", name, why=f"start {name} again", timeout=120) for name in self.running)]

    def take_down(self) -> list[Command]:
        """Return what stops and disables the neighbour for good."""
        if self.kind == "unit":
            return [run("systemctl", "disable", "--now", self.name, why=f"stop and disable {self.name}", timeout=300)]
        names = list(self.members)
        return [
            run("docker", "update", "--restart=no", *names, why="it must not come back by itself"),
            run("docker", "stop", "-t", "60", *reversed(names), why=f"stop {self.name}", timeout=60.0 * len(names) + 60),
        ]


def standing(kind: str, name: str, read: Facts, unit: Fact[facts.Unit | None]) -> Standing | None:
    """Return how the neighbour stands now, None when the host has no such thing."""
    if kind == "unit":
        found = read[unit]
        if found is None:
            return None
        return Standing(
            kind,
            name,
            found.active in {"active", "activating", "reloading"},
            found.file_state in {"enabled", "enabled-runtime"},
        )
    found_here = read[facts.CONTAINERS].values()
    containers = [c for c in found_here if (c.name if kind == "container" else c.labels.get(PROJECT)) == name]
    if not containers:
        return None
    containers.sort(key=lambda c: c.started)  # what was started first is what others may need
    members = {c.name: c.restart_policy or "no" for c in containers}
    running = tuple(c.name for c in containers if c.status in {"running", "restarting", "paused"})
    return Standing(kind, name, bool(running), any(policy != "no" for policy in members.values()), members, running)


class _Neighbour(State):
    """What both directions share: the reading, the record, and who may be touched."""

    def __init__(self, kind: str, name: str, members: Sequence[str] = ()) -> None:
        self._kind, self._name = kind, name
        self._unit = facts.unit_fact(name)
        self._record = f"replaced/{kind}-{name}.json"
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, facts.DEPLOYED, *((self._unit,) if kind == "unit" else ()))
        self.touches = frozenset(Owner("unit" if kind == "unit" else "container", member) for member in (members or [name]))
        self.undo_deadline = 120.0

    def _now(self, read: Facts) -> Standing | None:
        return standing(self._kind, self._name, read, self._unit)

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return the owners this state may change: the unit, the container, or the project's containers."""
        now = self._now(read)
        if now is None or self._kind == "unit":
            return self.touches
        return self.touches | {Owner("container", name) for name in now.members}


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
        return _not_back(self._now(before), self._now(now))


def _not_back(was: Standing | None, now: Standing | None) -> str:
    if was is None or (now is not None and (now.active, now.enabled, now.members) == (was.active, was.enabled, was.members)):
        return (
            "" if was is None or now is None or set(now.running) >= set(was.running) else f"{was.name} is not running in full"
        )
    return f"{was.name} is not as it was (active {was.active}, enabled {was.enabled})"


class NeighbourRestored(_Neighbour):
    """The neighbour stands again as the record says it stood before Lodger replaced it; the record is gone."""

    def __init__(self, record: Standing) -> None:
        """Take the record that NeighbourReplaced left on the host."""
        super().__init__(record.kind, record.name, tuple(record.members))
        self.name = f"neighbour_restored({record.name})"
        self._was = record
        self.deadline = 120.0

    def missing(self, read: Facts) -> str:
        """Return what is not as the record says; a record that still lies there counts too."""
        missing = _not_back(self._was, self._now(read))
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
        back = self._was.bring_back() if _not_back(self._was, self._now(read)) else []
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
