"""Each check on a host that is well and on one that is not; the report's words; and a probe that leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lodger.checks import doctor
from lodger.checks.doctor.examine import CHECKS
from lodger.checks.doctor.report import DoctorSeverity
from lodger.host import facts
from lodger.host.facts import health, packages
from lodger.host.facts.base import Fact
from lodger.host.facts.health import DriverOnDisk, KernelLog, Link, MemoryErrors, Mount, Repeated, TimeService, Topology, Xid
from lodger.host.facts.packages import Dpkg, Kernel
from lodger.inventory import Fleet, Host
from tests.unit.checks.doctor.support_doctor import (
    DRIVER,
    ERROR,
    FULL,
    NEIGHBOUR,
    NOTE,
    NOW,
    PACKAGES,
    STRANGER,
    WARNING,
    WELL,
    only,
    pairs,
    patient,
)
from tests.unit.readings import base, driver, port, process, proxy


@pytest.mark.parametrize("name", ["node1", "node2"])
def test_a_host_that_is_well_has_only_good_findings_from_every_check(fleet: Fleet, name: str) -> None:
    host = fleet.hosts[name]
    wide: dict[Fact[Any], Any] = {
        facts.DRIVER: driver(*[1] * host.gpus.count),
        health.TOPOLOGY: Topology(pairs("PHB", count=8), pairs("CNS", count=8)),
    }
    found = doctor.judge(patient(fleet, host, wide))
    assert {one.severity for one in found} == {DoctorSeverity.OK}, found
    assert {one.check for one in found} == {check.__name__ for check in CHECKS} - {"probe"}


def test_everything_is_asked_once_the_clock_first_and_each_with_a_bound(fleet: Fleet, host: Host) -> None:
    asked = doctor.questions(fleet, host)
    assert asked[0] == health.CLOCK
    assert len(set(asked)) == len(asked)
    assert all(fact.snippet.startswith("timeout -s KILL ") for fact in asked)
    bounds = [float(fact.snippet.split()[3]) for fact in asked]
    assert doctor.read_command(fleet, host).timeout > sum(bounds)


BROKEN: list[tuple[str, dict[Fact[Any], Any], str, DoctorSeverity, tuple[str, ...]]] = [
    ("no nvidia-smi", {facts.DRIVER: driver(complaint="sh: 3: nvidia-smi: not found")}, "driver", ERROR, ("not installed", "driver-upgrade")),
    (
        "an upgrade half done",
        {
            facts.DRIVER: driver(complaint="Failed to initialize NVML: Driver/library version mismatch", loaded="545.23.06"),
            health.ON_DISK: DriverOnDisk("545.23.06", DRIVER, NOW - 100, NOW - 7200),
        },
        "driver",
        ERROR,
        ("differ", "the kernel has 545.23.06, the library is 580.126.09", "driver-upgrade"),
    ),
    ("a driver that fails", {facts.DRIVER: driver(complaint="No devices were found")}, "driver", ERROR, ("No devices were found",)),
    (
        "a driver that came after the boot",
        {health.ON_DISK: DriverOnDisk("580.142", "580.142", NOW - 3600, NOW - 7200)},
        "boot",
        WARNING,
        (DRIVER, "580.142", "1.0 hours after the boot"),
    ),
    (
        "no module",
        {packages.KERNEL: Kernel("6.8.0-1", False, (), {}), health.ON_DISK: DriverOnDisk("", DRIVER, NOW, NOW - 7200)},
        "module",
        ERROR,
        ("the next boot has no GPU", "linux-headers-6.8.0-1"),
    ),
    ("no headers", {packages.KERNEL: Kernel("6.8.0-1", False, (DRIVER,), {})}, "module", WARNING, ("linux-headers-6.8.0-1",)),
    ("dpkg cut off", {packages.DPKG: Dpkg(PACKAGES, "nvidia-dkms-580 is half configured", "")}, "installed", ERROR, ("dpkg --configure",)),
    ("somebody installs", {packages.DPKG: Dpkg(PACKAGES, "", "pid 7 (apt)")}, "installed", NOTE, ("pid 7 (apt)",)),
    (
        "packages not held",
        {packages.DPKG: Dpkg({"nvidia-utils-580": replace(PACKAGES["nvidia-utils-580"], held=False)}, "", "")},
        "installed",
        NOTE,
        ("apt-mark hold nvidia-utils-580",),
    ),
    ("no Debian", {packages.DPKG: Dpkg({}, "sh: 5: dpkg: not found", "")}, "installed", NOTE, ("not Debian",)),
    ("a GPU less", {facts.DRIVER: driver(1, 1, 1)}, "gpus", ERROR, ("shows 3", "says 4")),
    ("smaller GPUs", {facts.DRIVER: driver(1, 1, 1, 1, memory=12288)}, "gpus", ERROR, ("12288 MiB",)),
    (
        "other GPUs",
        {facts.DRIVER: replace(driver(1, 1, 1, 1), gpus=tuple(replace(g, name="NVIDIA GeForce RTX 4090") for g in driver(1, 1, 1, 1).gpus))},
        "gpus",
        WARNING,
        ("RTX 4090",),
    ),
    ("a stranger", base(processes=[STRANGER]), "holders", ERROR, ("GPU 0,2", "pid 900", "user alice", "train.py", "neighbours")),
    ("the driver open", base(processes=[process(9, devices=("/dev/nvidiactl",))]), "holders", NOTE, ("alice",)),
    ("memory of nobody", {facts.DRIVER: driver(1, 9000, 1, 1)}, "holders", WARNING, ("GPU 1: 9000 MiB",)),
    (
        "a narrow link",
        {health.LINKS: {**WELL[health.LINKS], 1: Link("02:00", 4, 16, 41)}},
        "pcie",
        WARNING,
        ("GPU 1 (PCI 02:00): x4 of x16",),
    ),
    ("a hot GPU", {health.REASONS: {0: 1, 1: 0x41}}, "throttling", WARNING, ("GPU 1: hardware thermal slowdown, 41 C", "airflow")),
    ("a weak power supply", {health.REASONS: {0: 0x88}}, "throttling", WARNING, ("hardware slowdown and power brake",)),
    ("a power limit", {health.REASONS: {0: 4, 1: 0}}, "throttling", NOTE, ("GPU 0",)),
    ("bad memory", {health.MEMORY_ERRORS: {0: MemoryErrors(0, 3)}}, "ecc", ERROR, ("GPU 0: 3",)),
    ("mended memory", {health.MEMORY_ERRORS: {0: MemoryErrors(7, 0)}}, "ecc", NOTE, ("GPU 0: 7",)),
    (
        "a GPU off the bus",
        {health.KERNEL_LOG: KernelLog("dmesg", (Xid("03:00", 79, "GPU has fallen off the bus.", 3),), (), ())},
        "log",
        ERROR,
        ("fell off the bus", "Xid 79, 3 times, GPU 2 (PCI 03:00)"),
    ),
    (
        "an unknown GPU's trouble",
        {health.KERNEL_LOG: KernelLog("dmesg", (Xid("4b:00", 119, "Timeout after 6s"),), (), ())},
        "log",
        ERROR,
        ("a GPU that nvidia-smi does not show",),
    ),
    ("a program's mistake", {health.KERNEL_LOG: KernelLog("journal", (Xid("01:00", 31, ""),), (), ())}, "log", NOTE, ("Xid 31",)),
    ("an error of no list", {health.KERNEL_LOG: KernelLog("journal", (Xid("01:00", 32, ""),), (), ())}, "log", WARNING, ("Xid 32",)),
    ("a loss without number", {health.KERNEL_LOG: KernelLog("dmesg", (), (Repeated("NVRM: fallen off the bus"),), ())}, "log", ERROR, ("reboot",)),
    ("the machine's memory", {health.KERNEL_LOG: KernelLog("dmesg", (), (), (Repeated("EDAC MC0: 1 CE", 7),))}, "log", WARNING, ("7 lines", "EDAC MC0")),
    ("no log", {health.KERNEL_LOG: KernelLog("", (), (), ())}, "log", WARNING, ("cannot be read",)),
    ("no toolkit", {facts.DOCKER: replace(WELL[facts.DOCKER], gpu_hook=False)}, "tools", ERROR, ("GPUs to containers", "toolkit")),
    ("no curl", {facts.CURL: False}, "tools", ERROR, ("curl",)),
    ("no room for our files", {facts.disk_fact("/opt/lodger"): FULL}, "room", ERROR, ("/opt/lodger",)),
    ("a taken port", base(ports=[port(30000, 5, "nginx")]), "ports", ERROR, ("worker a is taken", "nginx", "pid 5")),
    (
        "the port of one that is replaced",
        base(containers=[NEIGHBOUR], ports=[port(30000, 8, "docker-proxy")], processes=[proxy(8)]),
        "ports",
        NOTE,
        ("container qwen38-fp8-sglang",),
    ),
    ("a clock ahead", {health.CLOCK: NOW + 10.2}, "clock", WARNING, ("at least 10.0 s ahead of",)),
    ("a clock far behind", {health.CLOCK: NOW - 100.2}, "clock", ERROR, ("at least 100.0 s behind", "set-ntp")),
    ("a clock left alone", {health.TIME_SERVICE: TimeService(False, False)}, "clock", NOTE, ("NTP is off",)),
    ("an old hierarchy", {health.CGROUP: 1}, "cgroup", WARNING, ("cgroup v1", "unified_cgroup_hierarchy")),
    (
        "a dead mount",
        {health.NETWORK_MOUNTS: {"/data/x": Mount("nas:/x", "nfs4", "no answer within 3 s")}},
        "mounts",
        ERROR,
        ("nas:/x (nfs4) on /data/x: no answer within 3 s", "umount -l"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "check", "severity", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_one_thing_that_is_wrong_is_one_finding(
    fleet: Fleet, host: Host, changes: dict[Fact[Any], Any], check: str, severity: DoctorSeverity, words: tuple[str, ...]
) -> None:
    only(patient(fleet, host, changes), check, severity, *words)


def test_every_check_is_seen_to_find_something() -> None:
    elsewhere = {"identity", "topology", "probe"}
    assert {row[2] for row in BROKEN} | elsewhere == {check.__name__ for check in CHECKS}
