"""Every check over one reading, the gravest finding first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lodger.checks.doctor.docker import probe, tools
from lodger.checks.doctor.driver import boot, driver, installed, module
from lodger.checks.doctor.finding import error_finding, warning_finding
from lodger.checks.doctor.gpus import ecc, gpus, holders, pcie, throttling, topology
from lodger.checks.doctor.kernel_log import log
from lodger.checks.doctor.machine import cgroup, clock, identity, mounts
from lodger.checks.doctor.reading import HostReading
from lodger.checks.doctor.report import DoctorFinding, DoctorSeverity
from lodger.checks.doctor.room import ports, room
from lodger.host import facts
from lodger.host.facts import health
from lodger.host.facts.base import Facts, Unreadable

DoctorCheck = Callable[[HostReading], Iterator[DoctorFinding]]
CHECKS: tuple[DoctorCheck, ...] = (
    *(identity, driver, boot, module, installed, gpus, holders, pcie, topology, throttling, ecc, log),
    *(tools, probe, room, ports, clock, cgroup, mounts),
)


def judge(at: HostReading) -> list[DoctorFinding]:
    """Return what every check says, gravest first, each under the name of its check."""
    found: list[DoctorFinding] = []
    at = replace(at, read=_without_docker(at.read))
    for check in CHECKS:
        try:
            for one in check(at):  # one by one: findings from before an Unreadable are kept
                found.append(replace(one, check=check.__name__))
        except Unreadable as error:
            found.append(replace(_unread(error, at), check=check.__name__))
    return sorted(found, key=lambda one: list(DoctorSeverity).index(one.severity))


def _without_docker(read: Facts) -> Facts:
    """Return ``read`` without containers when dockerd does not answer: `tools` says so, the other checks go on."""
    code, _ = read.sections.get(facts.CONTAINERS.name, (0, ""))
    return read if code == 0 else read.replaced(facts.CONTAINERS, "")


def _unread(error: Unreadable, at: HostReading) -> DoctorFinding:
    hung = any(code == health.KILLED and error.what.startswith(f"{name} ") for name, (code, _) in at.read.sections.items())
    if hung:
        return error_finding(
            f"{error.what}: it hangs", "it gave no answer in time", "look at it on the host; `log` and `mounts` may show why"
        )
    return warning_finding(error.what, error.cause, "this check was not possible; look at it on the host")
