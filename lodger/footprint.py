"""The footprint: everything foreign on a host that can be observed, and what became of it between two moments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lodger import facts
from lodger.facts import Container, Facts, Process, Program, Unit

# Mounts that come and go with containers, sessions and automatic units are nobody's service.
_PASSING_MOUNT = re.compile(r"^/(run|proc|sys|dev|tmp)(/|$)|/(overlay2|overlayfs|containers|netns)/|^/var/lib/docker/")
# Sessions, and what systemd or the package manager starts by itself; timer-driven units say so in a property of theirs.
_PASSING_UNIT = re.compile(
    r"^(user@\d+|user-runtime-dir@\d+|session-.*|run-.*|systemd-.*|lodger-.*|docker-[0-9a-f]{12,}.*|(serial-)?getty@.*"
    r"|modprobe@.*|ssh@.*|apt-daily.*|packagekit|polkit)\.(service|socket)$"
)


@dataclass(frozen=True)
class Owner:
    """Who answers for a process: ``kind`` is container, program, unit, user-unit or process, ``name`` its manager's word."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Thing:
    """One observable thing: how it stands, whether it is up, and its owner when that is not the thing itself."""

    how: str
    up: bool
    owner: Owner | None = None


@dataclass(frozen=True)
class Change:
    """One difference: ``kind`` and ``name`` of the thing, ``how`` in words, its owner, and whether it is a loss."""

    kind: str
    name: str
    how: str
    loss: bool
    owner: Owner | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.how}"


Footprint = Mapping[tuple[str, str], Thing]


def owner(
    process: Process, containers: Mapping[str, Container], programs: Mapping[str, Program], units: Mapping[str, Unit]
) -> Owner:
    """Return who answers for ``process``: its container, else the program, else the unit it descends from, else itself."""
    for container in containers.values():
        if container.id == process.container:
            return Owner("container", container.name)
    family = (process.pid, *process.parents)
    for program in programs.values():
        if program.pid and program.pid in family:
            return Owner("program", program.name)
    if user_unit := re.search(r"/user@\d+\.service/.*?/([^/ ]+\.service)", process.cgroup):
        return Owner("user-unit", f"{process.user}:{user_unit[1]}")
    if process.unit and not process.unit.startswith("user@"):
        return Owner("unit", process.unit)
    for unit in units.values():
        if unit.main_pid and unit.main_pid in family:
            return Owner("unit", unit.id)
    return Owner("process", str(process.pid))


def owners(read: Facts) -> dict[int, Owner]:
    """Return pid -> owner of every process that listens or has a GPU open."""
    containers, programs, units = read[facts.CONTAINERS], read[facts.PROGRAMS], read[facts.UNITS]
    return {pid: owner(process, containers, programs, units) for pid, process in read[facts.PROCESSES].items()}


def names(owner: Owner, read: Facts) -> set[Owner]:
    """Return all that ``owner`` may be called in an inventory: itself, its compose project, a program without its group."""
    known = {owner}
    container = read[facts.CONTAINERS].get(owner.name) if owner.kind == "container" else None
    if container is not None and (project := container.labels.get("com.docker.compose.project")):
        known.add(Owner("compose", project))
    if owner.kind == "program":
        known |= {Owner("program", owner.name.rpartition(":")[2]), Owner("program", owner.name.partition(":")[0])}
    return known


# From here on Linux gives ports to whoever asks for any; after a reboot the same service has another one.
_ANY_PORT = 32768


def of(read: Facts, host: str, *, rebooted: bool = False) -> Footprint:
    """Return the footprint in the facts ``read``: what is not Lodger's on ``host``, by (kind, name).

    With ``rebooted``, to be compared over a reboot, it leaves out what every boot changes: pids, times of start, passing ports.
    """
    containers = read[facts.CONTAINERS]
    who = owners(read)
    things: dict[tuple[str, str], Thing] = {}

    def volatile(text: str) -> str:
        return "" if rebooted else f", {text}"

    for container in containers.values():
        if container.labels.get("io.lodger.host") != host:
            policy = container.restart_policy or "no"
            how = f"{container.status}, {container.id[:12]}, restart policy {policy}{volatile(f'started {container.started}')}"
            things["container", container.name] = Thing(how, container.status in {"running", "paused"})
    for unit in read[facts.UNITS].values():
        if _is_service(unit):
            how = f"{unit.active} ({unit.sub}), {unit.file_state or 'no unit file'}{volatile(f'pid {unit.main_pid}')}"
            things["unit", unit.id] = Thing(how, unit.active in {"active", "reloading"})
    for program in read[facts.PROGRAMS].values():
        how = f"{program.state}{volatile(f'pid {program.pid}')}"
        things["program", program.name] = Thing(how, program.state in {"RUNNING", "STARTING"})
    for where, what in read[facts.MOUNTS].items():
        if not _PASSING_MOUNT.search(where):
            things["mount", where] = Thing(what, up=True)
    for port in read[facts.PORTS]:
        # The proxy of a published port is dockerd's; whom it serves shows in the container's own state.
        if port.process == "docker-proxy" or _is_ours(who.get(port.pid), containers, host) or port.process.startswith("sshd"):
            continue
        # A UDP socket may be a client's of the moment.
        if port.protocol == "tcp" and not (rebooted and port.port >= _ANY_PORT):
            # A socket that no process owns is the kernel's, or of another network namespace's helper: no service to lose.
            how = port.process or "owner unknown"
            things["port", f"{port.address}:{port.port}"] = Thing(how, bool(port.pid), who.get(port.pid))
    for process in read[facts.PROCESSES].values():
        if process.devices and not rebooted and not _is_ours(who[process.pid], containers, host):
            # A GPU job that ends by itself is a colleague's work that is done, no loss.
            how = f"{process.user}, {who[process.pid]}: {process.command[:80]}"
            things["gpu process", str(process.pid)] = Thing(how, False, who[process.pid])
    return things


def _is_service(unit: Unit) -> bool:
    """Whether ``unit`` is a service that stays up; a oneshot that ran is history."""
    if unit.timer_driven or _PASSING_UNIT.match(unit.id) or not unit.id.endswith((".service", ".socket")):
        return False
    return unit.active != "inactive" and unit.type != "oneshot" and unit.sub != "exited"


def _is_ours(who: Owner | None, containers: Mapping[str, Container], host: str) -> bool:
    if who is None:
        return False
    if who.kind == "container":
        return containers[who.name].labels.get("io.lodger.host") == host
    return who.kind == "unit" and who.name.startswith("lodger-")


def difference(before: Footprint, after: Footprint, expected: Callable[[Owner], bool]) -> list[Change]:
    """Return what happened to foreign things, losses first.

    ``expected(owner)`` says whether the inventory lets Lodger stop or start that owner (a neighbour); what belongs to it
    is left out. Something that was up and is gone, stopped or changed is a loss; anything else is news.
    """
    changes = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old is not None and new is not None and old.how == new.how:
            continue
        thing = new or old
        if thing is None or expected(Owner(*key)) or (thing.owner is not None and expected(thing.owner)):
            continue
        how = f"new: {thing.how}" if old is None else f"{old.how} -> {new.how if new else 'gone'}"
        changes.append(Change(*key, how, loss=old is not None and old.up, owner=thing.owner))
    return sorted(changes, key=lambda change: not change.loss)
