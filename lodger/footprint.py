"""The footprint: everything foreign on a host that can be observed, and what became of it between two moments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from lodger import facts
from lodger.facts import Fact, Facts

# One round trip reads all of it.
FACTS: tuple[Fact[object], ...] = (facts.CONTAINERS, facts.UNITS, facts.PROGRAMS, facts.PORTS, facts.MOUNTS, facts.HOLDERS)

# Mounts that come and go with containers, sessions and automatic units are nobody's service.
_PASSING_MOUNT = re.compile(r"^/(run|proc|sys|dev)(/|$)|/(overlay2|containers|netns|overlayfs)/|^/tmp(/|$)|^/var/lib/docker/")
# Units that systemd starts for sessions and by itself; timer-driven ones are told apart by their own property.
_PASSING_UNIT = re.compile(
    r"^(user@\d+|user-runtime-dir@\d+|session-.*|run-[ru].*|systemd-.*|lodger-.*|docker-[0-9a-f]{12,}.*|getty@.*|serial-getty@.*"
    r"|modprobe@.*|.*@.*-.*|apt-.*|man-db|logrotate|e2scrub.*|fstrim|dpkg-db-backup|packagekit|polkit|rc-local)\.(service|socket)$"
)


@dataclass(frozen=True)
class Change:
    """One difference: ``kind`` and ``name`` of the thing, ``how`` in words, and whether it is a loss or only news."""

    kind: str
    name: str
    how: str
    loss: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.how}"


@dataclass(frozen=True)
class Footprint:
    """What is foreign, by kind: name -> how it stands. Only things that are up are in it: a stopped container is no loss."""

    things: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        for kind, named in self.things.items():
            for name, how in named.items():
                yield kind, name, how


def of(read: Facts, *, ours: Callable[[facts.Container], bool]) -> Footprint:
    """Return the footprint in the facts ``read``; ``ours`` tells Lodger's containers from foreign ones by their label."""
    containers = read[facts.CONTAINERS]
    own_ids = {container.id for container in containers.values() if ours(container)}
    own_pids = {container.pid for container in containers.values() if ours(container) and container.pid}
    owner_of = {container.id: container.name for container in containers.values()}
    things: dict[str, dict[str, str]] = {
        "container": {
            c.name: f"{c.status}, {c.id[:12]}, started {c.started}, restart policy {c.restart_policy or 'no'}"
            for c in containers.values()
            if not ours(c)
        },
        "unit": {
            unit.id: f"{unit.active} ({unit.sub}), {unit.file_state or 'no unit file state'}, pid {unit.main_pid}"
            for unit in read[facts.UNITS].values()
            if not unit.timer_driven
            and not _PASSING_UNIT.match(unit.id)
            and unit.id.endswith((".service", ".socket"))
            and _steady(unit)
        },
        "program": {p.name: f"{p.state}, pid {p.pid}" for p in read[facts.PROGRAMS].values()},
        "mount": {where: what for where, what in read[facts.MOUNTS].items() if not _PASSING_MOUNT.search(where)},
        "port": {},
        "gpu process": {},
    }
    own_ports = _ports_of(containers, own_ids)
    for port in read[facts.PORTS]:
        # The proxy of a published port belongs to dockerd; which container it serves is in the container's own state.
        if (
            port.process in {"docker-proxy"}
            or port.process.startswith("sshd")
            or (port.port in own_ports and port.process in own_ports[port.port])
        ):
            continue
        if port.protocol == "udp" and port.address not in {"0.0.0.0", "*", "[::]"}:  # noqa: S104  compared, not bound
            continue  # a client's socket of the moment
        things["port"][f"{port.protocol} {port.address}:{port.port}"] = port.process or "owner unknown"
    for holder in read[facts.HOLDERS]:
        if holder.container in own_ids or holder.pid in own_pids or "lodger-" in holder.unit:
            continue
        where = owner_of.get(holder.container) or holder.unit or "no service"
        things["gpu process"][f"{holder.pid}"] = f"{holder.user}, {where}: {holder.command[:80]}"
    return Footprint(things)


def _steady(unit: facts.Unit) -> bool:
    """Whether ``unit`` is a service that stays up; a oneshot that ran is history, not a service."""
    return unit.active in {"active", "reloading", "activating", "failed"} and unit.type != "oneshot" and unit.sub != "exited"


def _ports_of(containers: Mapping[str, facts.Container], own_ids: set[str]) -> dict[int, set[str]]:
    """Return port -> process names of Lodger's containers on the host's own network, which ``ss`` shows directly."""
    ports: dict[int, set[str]] = {}
    for container in containers.values():
        if container.id in own_ids and container.host_network:
            for word in container.labels.get("io.lodger.ports", "").split(","):
                if word.isdigit():
                    ports.setdefault(int(word), set()).update({"python3", "sglang::router", "sglang-router", "python"})
    return ports


def difference(before: Footprint, after: Footprint, expected: Callable[[str, str], bool]) -> list[Change]:
    """Return what happened to foreign things, losses first.

    ``expected(kind, name)`` says what the inventory lets Lodger change (neighbours); such changes are left out. Something
    lost, stopped or changed is a loss; something new, or something stopped that now runs, is news.
    """
    changes: list[Change] = []
    for kind in {**before.things, **after.things}:
        old, new = before.things.get(kind, {}), after.things.get(kind, {})
        for name in sorted({*old, *new}):
            if expected(kind, name) or old.get(name) == new.get(name):
                continue
            if name not in old:
                changes.append(Change(kind, name, f"new: {new[name]}", loss=False))
            elif name not in new:
                changes.append(Change(kind, name, f"gone, was: {old[name]}", loss=_was_up(kind, old[name])))
            else:
                changes.append(Change(kind, name, f"{old[name]} -> {new[name]}", loss=_was_up(kind, old[name])))
    return sorted(changes, key=lambda change: (not change.loss, change.kind, change.name))


def _was_up(kind: str, how: str) -> bool:
    if kind == "container":
        return how.startswith(("running", "restarting", "paused"))
    if kind == "unit":
        return how.startswith(("active", "reloading"))
    if kind == "program":
        return how.startswith(("RUNNING", "STARTING"))
    return kind in {"mount", "port"}  # a GPU process that ended by itself is a colleague's job that is done
