"""The status of a neighbour under its own manager, and the commands that change it: it is stopped only through that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lodger.host import facts
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner
from lodger.states.base import Blocker

PROJECT = "com.docker.compose.project"
_UP = {"active", "activating", "reloading"}
_STOP = 300.0  # seconds that a manager may take to stop or start a neighbour


@dataclass(frozen=True)
class NeighbourStatus:
    """Whether a neighbour is running and enabled.

    ``enabled``: it starts by itself. ``members`` are the names of its containers, each with its restart policy, or of the
    programs of its group, each with ""; those in ``running`` are up. A unit has neither.
    """

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

    def stop(self) -> list[Command]:
        """Return what stops it for a while."""
        why = f"stop {self.name} through its owner"
        if self.kind in _SYSTEMCTL:
            return [run(*_systemctl(self), "stop", _unit(self), why=why, timeout=_STOP)]
        if self.kind == "program":
            return [run("supervisorctl", "stop", *self.running, why=why, timeout=_STOP)] if self.running else []
        parts = list(reversed(self.running))
        return [run("docker", "stop", "-t", "60", *parts, why=why, timeout=60.0 * len(parts) + 60)] if parts else []

    def start(self) -> list[Command]:
        """Return the commands that start everything that was running; starting what runs already changes nothing."""
        why = f"start {self.name} again"
        if self.kind in _SYSTEMCTL:
            return [run(*_systemctl(self), "start", _unit(self), why=why, timeout=_STOP)] if self.active else []
        if self.kind == "program":
            # supervisorctl calls it an error (exit code 1) when a program runs already; the reading afterwards decides.
            return [run("supervisorctl", "start", *self.running, why=why, timeout=_STOP, ok=(0, 1))] if self.running else []
        return [run("docker", "start", name, why=why, timeout=_STOP) for name in self.running]

    def take_down(self) -> list[Command]:
        """Return what stops and disables it for good."""
        if self.kind in _SYSTEMCTL:
            systemctl, unit = quote(_systemctl(self)), quote([_unit(self)])
            # Of a unit file that lies elsewhere, `disable` removes the link too: nothing would be left to enable again.
            script = (
                f'file=$({systemctl} show -p FragmentPath --value -- {unit}); real=$(readlink -f -- "$file")\n'
                f'{systemctl} disable --now {unit} && {{ [ -e "$file" ] || {systemctl} link "$real"; }}'
            )
            return [Command(script, why=f"stop and disable {self.name}", timeout=_STOP)]
        return [
            run("docker", "update", "--restart=no", *self.members, why=f"keep {self.name} from starting by itself"),
            *self.stop(),
        ]

    def bring_back(self) -> list[Command]:
        """Return the commands that enable and start it as before :meth:`take_down`."""
        if self.kind in _SYSTEMCTL:
            enable = run(*_systemctl(self), "enable", _unit(self), why=f"enable {self.name} again")
            return [*([enable] if self.enabled else []), *self.start()]
        policies = [
            run("docker", "update", f"--restart={policy}", name, why=f"set the restart policy of {name} again")
            for name, policy in self.members.items()
        ]
        return [*policies, *self.start()]

    def owners(self) -> frozenset[Owner]:
        """Return the owners of its processes."""
        kind = "container" if self.kind == "compose" else self.kind
        return frozenset(Owner(kind, name) for name in (self.members or [self.name]))


_SYSTEMCTL = {"unit", "user-unit"}


def _systemctl(what: NeighbourStatus) -> list[str]:
    if what.kind == "unit":
        return ["systemctl"]
    return ["systemctl", "--user", f"--machine={what.name.partition(':')[0]}@.host"]


def _unit(what: NeighbourStatus) -> str:
    return what.name if what.kind == "unit" else what.name.partition(":")[2]


class NeighbourFacts:
    """The facts about one neighbour, and how they are read."""

    def __init__(self, kind: str, name: str) -> None:
        """Take the neighbour's ``kind`` and the ``name`` its manager calls it (``user:unit`` for a user's unit)."""
        self.kind, self.name = kind, name
        user, _, unit = name.partition(":")
        choice: dict[str, tuple[Fact[Any], Callable[[Any], NeighbourStatus | None]]] = {
            "unit": (facts.unit_fact(name), self._of_unit),
            "user-unit": (facts.unit_fact(unit, user=user), self._of_unit),
            "program": (facts.PROGRAMS, self._of_programs),
            "container": (facts.CONTAINERS, self._of_containers),
            "compose": (facts.CONTAINERS, self._of_containers),
        }
        self.fact, self._parse = choice[kind]

    def of(self, read: Facts) -> NeighbourStatus | None:
        """Return the status of the neighbour, None when it does not exist on the host."""
        return self._parse(read[self.fact])

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when it could not be started again after a stop."""
        found = read[self.fact]
        if isinstance(found, facts.Unit) and found.file_state == "transient":
            cause = "it was started with systemd-run and has no unit file"
        elif gone := next((one.name for one in self._containers(found) if one.removed_when_stopped), ""):
            cause = f"the container {gone} was started with --rm"
        else:
            return []
        hint = "ask its owner to start it from a unit file, or without --rm; or to stop it"
        return [Blocker(f"{self.name} could not be started again once it is stopped", cause, hint)]

    def gave_up(self, read: Facts) -> str:
        """Return why its manager will not start it again, "" when it may."""
        found = read[self.fact]
        return found.given_up if isinstance(found, facts.Unit) else ""

    def _containers(self, found: Any) -> list[facts.Container]:
        if self.fact is not facts.CONTAINERS:
            return []
        return [c for c in found.values() if (c.name if self.kind == "container" else c.labels.get(PROJECT)) == self.name]

    def _of_unit(self, unit: facts.Unit | None) -> NeighbourStatus | None:
        if unit is None:
            return None
        return NeighbourStatus(self.kind, self.name, unit.active in _UP, unit.file_state in {"enabled", "enabled-runtime"})

    def _of_programs(self, programs: dict[str, facts.Program]) -> NeighbourStatus | None:
        mine = {
            p.name: p for p in programs.values() if self.name in {p.name, p.name.partition(":")[0], p.name.rpartition(":")[2]}
        }
        running = tuple(name for name, p in mine.items() if p.state in {"RUNNING", "STARTING", "BACKOFF"})
        return NeighbourStatus(self.kind, self.name, bool(running), False, dict.fromkeys(mine, ""), running) if mine else None

    def _of_containers(self, containers: dict[str, facts.Container]) -> NeighbourStatus | None:
        mine = self._containers(containers)
        if not mine:
            return None
        mine.sort(key=lambda c: c.started)  # what was started first is what others may need
        members = {c.name: c.restart_policy or "no" for c in mine}
        running = tuple(c.name for c in mine if c.status in {"running", "restarting", "paused"})
        return NeighbourStatus(
            self.kind, self.name, bool(running), any(policy != "no" for policy in members.values()), members, running
        )


def not_back(was: NeighbourStatus | None, now: NeighbourStatus | None) -> str:
    """Return what of ``was`` is not back, "" when all of it is."""
    if was is None:
        return ""
    if now is None:
        return f"{was.name} no longer exists"
    if was.kind in _SYSTEMCTL and (now.active, now.enabled) != (was.active, was.enabled):
        return f"{was.name} is not as before (running: {was.active}, enabled: {was.enabled})"
    for name, policy in was.members.items():  # what its owner added meanwhile does not matter
        if name not in now.members:
            return f"{name} no longer exists"
        if now.members[name] != policy:
            return f"{name} has the restart policy {now.members[name]}, it had {policy}"
    lost = sorted(set(was.running) - set(now.running))
    return f"{lost[0]} is not running again" if lost else ""
