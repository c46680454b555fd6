"""What the tests of doctor share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lodger.checkout import CODE
from lodger.checks import doctor
from lodger.checks.doctor.reading import HostReading
from lodger.checks.doctor.report import DoctorFinding, DoctorSeverity
from lodger.host import facts
from lodger.host.facts import health, packages
from lodger.host.facts.base import Fact
from lodger.host.facts.docker import Docker
from lodger.host.facts.health import DriverOnDisk, KernelLog, Link, MemoryErrors, Mount, TimeService, Topology
from lodger.host.facts.machine import Disk, Machine
from lodger.host.facts.packages import Dpkg, Kernel, Package
from lodger.host.facts.weights import Folder
from lodger.inventory import Fleet, Host
from tests.unit.readings import base, container, driver, on_gpus, process, readings

ROOT = CODE
DRIVER = "580.126.09"
NEIGHBOUR = container("qwen38-fp8-sglang", published=(30000,))
NOW = 1_800_000_000.0


def pairs(word: str, self: str = "X", count: int = 4) -> dict[tuple[int, int], str]:
    return {(one, other): self if one == other else word for one in range(count) for other in range(count)}


PACKAGES = {name: Package(name, "hi", f"{DRIVER}-0ubuntu1", held=True) for name in packages.stack(DRIVER)}
WELL: dict[Fact[Any], Any] = {
    **base(),
    facts.MACHINE: Machine("0" * 32, "b", "node1", "6.1.0-28-amd64", 7200.0, NOW, 252, "14:05"),
    facts.DRIVER: driver(1, 1, 1, 1),
    facts.DOCKER: Docker(True, "27.1.1", "2.29.1", True, "/var/lib/docker"),
    facts.CURL: True,
    packages.DPKG: Dpkg(PACKAGES, "", ""),
    packages.KERNEL: Kernel("6.1.0-28-amd64", True, (DRIVER,), {}),
    health.CLOCK: NOW,
    health.TIME_SERVICE: TimeService(True, True),
    health.CGROUP: 2,
    health.ON_DISK: DriverOnDisk(DRIVER, DRIVER, NOW - 90000, NOW - 7200),
    health.LINKS: {gpu: Link(f"{gpu + 1:02x}:00", 16, 16, 41) for gpu in range(4)},
    health.REASONS: dict.fromkeys(range(4), 1),
    health.MEMORY_ERRORS: dict.fromkeys(range(4), MemoryErrors(None, None)),
    health.TOPOLOGY: Topology(pairs("PHB"), pairs("CNS")),
    health.KERNEL_LOG: KernelLog("journal", (), (), ()),
    health.NETWORK_MOUNTS: {"/data/gluster": Mount("gluster1:/lab", "fuse.glusterfs", "")},
    health.DOCKER_ROOM: 500 * 2**30,
}


def patient(fleet: Fleet, host: Host, changes: Mapping[Fact[Any], Any] = {}, **more: Any) -> HostReading:
    """Return a host that is well but for ``changes``."""
    fit = [fact for fact in doctor.questions(fleet, host) if fact.name.startswith("disk ")]
    own: dict[Fact[Any], Any] = dict.fromkeys(fit, Disk(2**40, writable=True))
    own |= {state.fact: Folder(True, fleet.models[name].size_bytes or 1) for name, state in doctor.weights(fleet, host).items()}
    own[doctor.pinned(fleet, host)] = {
        image.reference: True for image in doctor.images_of(fleet, host).values() if image.digest
    }
    asked = doctor.questions(fleet, host)
    values = {fact: value for fact, value in {**WELL, **own, **changes}.items() if fact in asked}
    return HostReading(fleet, host, readings(values), more.pop("asked", (NOW - 0.2, NOW + 0.2)), **more)


def only(at: HostReading, check: str, severity: DoctorSeverity, *words: str) -> DoctorFinding:
    """Return the only thing that is said of a host, by ``check``; it has every word and says what to do."""
    found = [one for one in doctor.judge(at) if one.severity is not DoctorSeverity.OK]
    assert [(one.check, one.severity) for one in found] == [(check, severity)], found
    text = f"{found[0].what} ({found[0].measured}) {found[0].todo}"
    assert all(word in text for word in words), text
    assert found[0].todo
    assert "\n" not in found[0].what
    # What looks at one thing does not call it well beside. The others look at many.
    if severity is not DoctorSeverity.NOTE and check not in MANY:
        assert [one for one in doctor.judge(at) if (one.check, one.severity) == (check, DoctorSeverity.OK)] == []
    return found[0]


MANY = {"holders", "room", "ports", "mounts"}
ERROR, WARNING, NOTE = DoctorSeverity.ERROR, DoctorSeverity.WARNING, DoctorSeverity.NOTE

FULL = Disk(2**20, writable=True)
STRANGER = process(900, devices=on_gpus(0, 2), command="python3 train.py --api-key sk-1")


def damaged(at: HostReading, fact: Fact[Any], code: int, text: str) -> HostReading:
    return replace(at, read=at.read.replaced(fact, text, code))
