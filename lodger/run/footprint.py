"""The footprint: everything foreign on a host that can be observed, and what changed between two moments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.machine import Unit
from lodger.host.ownership import DOCKER, Owner, is_ours, is_own_container, is_sshd, owners

# Mounts that come and go with containers, sessions and automatic units do not count.
_PASSING_MOUNT = re.compile(r"^/(run|proc|sys|dev|tmp)(/|$)|/(overlay2|overlayfs|containers|netns)/|^/var/lib/docker/")
# Sessions, and what systemd or the package manager starts by itself; a property marks timer-driven units.
_PASSING_UNIT = re.compile(
    r"^(user@\d+|user-runtime-dir@\d+|session-.*|run-.*|systemd-.*|docker-[0-9a-f]{12,}.*|(serial-)?getty@.*"
    r"|modprobe@.*|ssh@.*|apt-daily.*|packagekit|polkit)\.(service|socket)$"
)


@dataclass(frozen=True)
class Thing:
    """One observable thing: its status in words, whether it is up, and its owner when that is not the thing itself."""

    how: str
    up: bool
    owner: Owner | None = None


@dataclass(frozen=True)
class FootprintChange:
    """One difference: ``kind`` and ``name`` of the thing, ``how`` in words, its owner, and whether it is a loss."""

    kind: str
    name: str
    how: str
    loss: bool
    owner: Owner | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.how}"


Footprint = Mapping[tuple[str, str], Thing]

# From here on Linux chooses ports by itself; after a reboot the same service has another one.
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
        if not is_own_container(container, host):
            policy = container.restart_policy or "no"
            how = f"{container.status}, {container.id[:12]}, restart policy {policy}{volatile(f'started {container.started}')}"
            things["container", container.name] = Thing(how, container.status in {"running", "paused"})
    for unit in read[facts.UNITS].values():
        if _is_service(unit) and not is_ours(Owner("unit", unit.id), read, host):
            how = f"{unit.active} ({unit.sub}), {unit.file_state or 'no unit file'}{volatile(f'pid {unit.main_pid}')}"
            things["unit", unit.id] = Thing(how, unit.active in {"active", "reloading"})
    for program in read[facts.PROGRAMS].values():
        how = f"{program.state}{volatile(f'pid {program.pid}')}"
        things["program", program.name] = Thing(how, program.state in {"RUNNING", "STARTING"})
    for where, what in read[facts.MOUNTS].items():
        if not _PASSING_MOUNT.search(where):
            things["mount", where] = Thing(what, up=True)
    for port in read[facts.PORTS]:
        # Docker listens for a container, which is in the footprint itself.
        listener, process = who.get(port.pid), read[facts.PROCESSES].get(port.pid)
        if listener == DOCKER or is_ours(listener, read, host) or (process is not None and is_sshd(process)):
            continue
        # A UDP socket may belong to a short-lived client.
        if port.protocol == "tcp" and not (rebooted and port.port >= _ANY_PORT):
            # A socket without a process belongs to the kernel or to a helper of another network namespace: not a service.
            # The name of the process counts only when it has no unit, container or program.
            how = str(listener) if listener and listener.kind != "process" else port.process or "owner unknown"
            things["port", f"{port.address}:{port.port}"] = Thing(how, bool(port.pid), listener)
    for process in read[facts.PROCESSES].values():
        if process.devices and not rebooted and not is_ours(who[process.pid], read, host):
            # A GPU job that ends by itself has done its work: not a loss.
            how = f"{process.user}, {who[process.pid]}: {process.command[:80]}"
            things["gpu process", str(process.pid)] = Thing(how, False, who[process.pid])
    return things


def _is_service(unit: Unit) -> bool:
    """Whether ``unit`` is a service that stays up; a oneshot that has run is not."""
    if unit.timer_driven or _PASSING_UNIT.match(unit.id) or not unit.id.endswith((".service", ".socket")):
        return False
    return unit.active != "inactive" and unit.type != "oneshot" and unit.sub != "exited"


def difference(before: Footprint, after: Footprint, expected: Callable[[Owner], bool]) -> list[FootprintChange]:
    """Return what changed in foreign things, losses first.

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
        changes.append(FootprintChange(*key, how, loss=old is not None and old.up, owner=thing.owner))
    return sorted(changes, key=lambda change: not change.loss)
