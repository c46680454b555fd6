"""Who answers for a process: a container, a program, a unit, or itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.docker import Container
from lodger.host.facts.machine import Process, Program, Unit


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


def is_ours(who: Owner | None, containers: Mapping[str, Container], host: str) -> bool:
    """Whether ``who`` is a service of ours on ``host``."""
    if who is None:
        return False
    if who.kind == "container":
        return containers[who.name].labels.get("io.lodger.host") == host
    return who.kind == "unit" and who.name.startswith("lodger-")
