"""Who answers for a process: a container, a program, a unit, or itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lodger.host import facts, nvidia, paths
from lodger.host.facts.base import Facts
from lodger.host.facts.docker import HOST_LABEL, Container
from lodger.host.facts.machine import SSHD, ListeningPort, Process, Program, Unit
from lodger.inventory import Host
from lodger.inventory.schema import Neighbour


@dataclass(frozen=True)
class Owner:
    """Who answers for a process: ``kind`` is container, program, unit, user-unit or process, ``name`` its manager's word."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def owner(
    process: Process, containers: Mapping[str, Container], programs: Mapping[str, Program], units: Mapping[str, Unit]
) -> Owner:
    """Return who answers for ``process``: its container, else the program, else the unit it descends from, else itself."""
    if inside := process.container:
        for container in containers.values():
            if container.id == inside:
                return Owner("container", container.name)
    family = (process.pid, *process.parents)
    for program in programs.values():
        if program.pid and program.pid in family:
            return Owner("program", program.name)
    if user_unit := process.user_unit:
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


DOCKER = Owner("unit", "docker.service")


def port_owner(port: ListeningPort, who: Mapping[int, Owner], read: Facts) -> Owner | None:
    """Return who has a port, None where nobody knows; ``who`` are the owners of processes.

    Docker itself listens on a port that a container publishes. What a listener is called says nothing.
    """
    listener = who.get(port.pid)
    if listener != DOCKER:
        return listener
    containers = read[facts.CONTAINERS].values()
    return next((Owner("container", one.name) for one in containers if one.running and port.port in one.published), DOCKER)


_SSH_UNIT = re.compile(r"sshd?(@.*)?\.service")
_LOGIN = re.compile(r"(?:^| )/user\.slice/user-\d+\.slice/session-[^/ ]+\.scope(?=[/ ]|$)")


def is_sshd(process: Process) -> bool:
    """Return whether ``process`` is the host's sshd, or its part of a login, which listens for what somebody forwards."""
    if process.program not in {*SSHD, None}:  # None: a ledger of an earlier version does not say
        return False
    return bool(_SSH_UNIT.fullmatch(process.unit) or _LOGIN.search(process.cgroup))


def declared(host: Host) -> dict[Owner, Neighbour]:
    """Return the neighbours that the host file names."""
    return {Owner(neighbour.kind, name): neighbour for name, neighbour in host.neighbours.items()}


def is_driver_daemon(process: Process) -> bool:
    """Return whether ``process`` is one of the driver's own daemons: by its system unit, or because root runs its program."""
    return process.unit in nvidia.DAEMON_UNITS or (process.by_root and process.program in nvidia.DAEMON_PROGRAMS)


def runs_without_unit(process: Process) -> bool:
    """Return whether ``process`` is a daemon of the driver that no unit stops and starts: a person did, and has to."""
    return is_driver_daemon(process) and process.unit not in nvidia.DAEMON_UNITS


MARK = f"# {HOST_LABEL}="
"""What a unit file of ours says of its host, on a line of its own."""


def is_ours(owner: Owner | None, read: Facts, host: str) -> bool:
    """Return whether Lodger made what ``owner`` names for ``host``: a container by its label, a system unit by its name."""
    if owner is None:
        return False
    if owner.kind == "container":
        return is_own_container(read[facts.CONTAINERS].get(owner.name), host)
    return owner.kind == "unit" and owner.name.startswith(paths.PREFIX)


def is_own_container(container: Container | None, host: str) -> bool:
    """Return whether Lodger made ``container`` for ``host``; other sites may have theirs on the same machine."""
    return container is not None and container.labels.get(HOST_LABEL) == host


def is_own_file(text: str, host: str) -> bool:
    """Return whether Lodger wrote the unit file ``text`` for ``host``."""
    return f"{MARK}{host}" in text.splitlines()
