"""Each check on a host that is well and on one that is not; the report's words; and a probe that leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lodger import inventory
from lodger.checks import doctor
from lodger.checks.doctor.examine import CHECKS
from lodger.checks.doctor.reading import GpuContainerCheck, HostReading
from lodger.checks.doctor.report import DoctorFinding, DoctorResult, DoctorSeverity, document
from lodger.errors import Refused
from lodger.host import facts
from lodger.host.facts import health, packages
from lodger.host.facts.base import Fact
from lodger.host.facts.docker import Docker
from lodger.host.facts.health import DriverOnDisk, KernelLog, Link, MemoryErrors, Mount, Repeated, TimeService, Topology, Xid
from lodger.host.facts.machine import Disk, Machine
from lodger.host.facts.packages import Dpkg, Kernel, Package
from lodger.host.facts.weights import Folder
from lodger.inventory import Fleet, Host
from tests.unit.readings import base, container, driver, in_container, on_gpus, port, process, program, readings

ROOT = Path(__file__).parents[2]
DRIVER = "580.126.09"
NEIGHBOUR = container("qwen38-fp8-sglang", published=(30000,))
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    hosts = {name: host.model_copy(update={"machine_id": "0" * 32}) for name, host in fleet.hosts.items()}
    return fleet.model_copy(update={"images": images, "hosts": hosts})


@pytest.fixture
def host(fleet: Fleet) -> Host:
    return fleet.hosts["node1"]


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


def said(at: HostReading, check: str) -> list[DoctorFinding]:
    """Return what a check says that is not well."""
    return [one for one in doctor.judge(at) if one.check == check and one.severity is not DoctorSeverity.OK]


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


# ---------------------------------------------------------------- well


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


# ---------------------------------------------------------------- one thing wrong at a time

FULL = Disk(2**20, writable=True)
STRANGER = process(900, devices=on_gpus(0, 2), command="python3 train.py --api-key sk-1")
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
    ("no Debian", {packages.DPKG: Dpkg({}, "sh: 5: dpkg: not found", "")}, "installed", NOTE, ("no Debian",)),
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
        base(containers=[NEIGHBOUR], ports=[port(30000, 8, "docker-proxy")]),
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


# ---------------------------------------------------------------- what depends on the inventory


def test_identity_that_is_not_recorded_is_a_note_with_the_line_to_write(fleet: Fleet, host: Host) -> None:
    unknown = host.model_copy(update={"machine_id": None})
    only(patient(fleet, unknown), "identity", NOTE, f'`machine_id: "{"0" * 32}"`', "node1.yml")


def test_declared_driver_and_image_that_do_not_fit_what_is_loaded(fleet: Fleet, host: Host) -> None:
    old: dict[Fact[Any], Any] = {
        facts.DRIVER: driver(1, 1, 1, 1, loaded="545.23.06"),
        health.ON_DISK: replace(WELL[health.ON_DISK], module="545.23.06"),
    }
    found = said(patient(fleet, host, old), "driver")
    assert [one.what for one in found] == ["the driver is not the declared one", "the image's CUDA is too new for the driver"]
    assert "CUDA up to 12.3" in found[1].measured
    assert len([one for one in doctor.judge(patient(fleet, host, old)) if one.check == "driver"]) == 2, "it is not well besides"


def test_an_image_whose_tag_alone_says_its_cuda_is_judged_too(fleet: Fleet, host: Host) -> None:
    images = {**fleet.images, "sglang": fleet.images["sglang"].model_copy(update={"tag": "v0.5.20", "cuda": None})}
    old = host.model_copy(update={"driver": "575.51.03"})
    read: dict[Fact[Any], Any] = {
        facts.DRIVER: driver(1, 1, 1, 1, loaded="575.51.03"),
        health.ON_DISK: replace(WELL[health.ON_DISK], module="575.51.03"),
    }
    found = said(patient(fleet.model_copy(update={"images": images}), old, read), "driver")
    assert [one.what for one in found] == ["the image's CUDA is too new for the driver"]
    assert "built on 13.0" in found[0].measured


@pytest.mark.parametrize(
    ("table", "off", "severity", "word"),
    [
        (Topology(pairs("NV4"), pairs("OK")), True, NOTE, "disable_custom_all_reduce: false"),
        (Topology(pairs("NV4"), pairs("OK")), False, None, ""),
        (Topology(pairs("PHB"), pairs("CNS")), True, None, ""),
        (Topology(pairs("PHB"), pairs("CNS")), False, WARNING, "needs peer access"),
        (Topology(pairs("PHB", count=2), pairs("CNS", count=2)), False, None, ""),
        (Topology(pairs("PHB"), pairs("OK")), False, WARNING, "patched driver"),
        (Topology({**pairs("NV4"), (0, 3): "SYS", (3, 0): "SYS"}, pairs("OK")), False, WARNING, "1 SYS"),
        (Topology(pairs("SYS"), {}), False, WARNING, "6 unknown"),
    ],
)
def test_topology_decides_on_custom_all_reduce(
    fleet: Fleet, host: Host, table: Topology, off: bool, severity: DoctorSeverity | None, word: str
) -> None:
    worker = host.workers["a"].model_copy(update={"engine": {"disable_custom_all_reduce": off}})
    at = patient(fleet, host.model_copy(update={"workers": {"a": worker}}), {health.TOPOLOGY: table})
    worker._name = "a"
    if severity is None:
        assert said(at, "topology") == []
    else:
        only(at, "topology", severity, word)


def test_a_worker_of_one_gpu_has_nobody_to_talk_to(fleet: Fleet, host: Host) -> None:
    alone = host.workers["a"].model_copy(update={"gpus": (0,), "engine": {"disable_custom_all_reduce": False}})
    found = doctor.judge(patient(fleet, host.model_copy(update={"workers": {"a": alone}})))
    assert [one for one in found if one.check == "topology"] == []


def test_what_nvidia_smi_would_be_asked_is_not_missed_while_it_does_not_work(fleet: Fleet, host: Host) -> None:
    at = patient(fleet, host, {facts.DRIVER: driver(complaint="No devices were found")})
    for fact in (health.LINKS, health.REASONS, health.MEMORY_ERRORS, health.TOPOLOGY):
        at = damaged(at, fact, 6, "No devices were found")
    only(at, "driver", ERROR, "No devices were found")


def test_images_are_not_asked_of_a_docker_that_does_not_answer(fleet: Fleet, host: Host) -> None:
    silent: dict[Fact[Any], Any] = {facts.DOCKER: replace(WELL[facts.DOCKER], server=""), doctor.pinned(fleet, host): {}}
    only(patient(fleet, host, silent), "tools", ERROR, "dockerd does not answer")


def test_our_folders_are_well_or_not(fleet: Fleet, host: Host) -> None:
    def well(at: HostReading) -> bool:
        return any("our own folders" in one.what for one in doctor.judge(at))

    assert well(patient(fleet, host))
    assert not well(patient(fleet, host, {facts.disk_fact("/opt/lodger"): FULL}))


def test_room_is_asked_for_what_is_still_missing(fleet: Fleet, host: Host) -> None:
    sglang = fleet.images["sglang"].reference
    absent = {doctor.pinned(fleet, host): {sglang: False}}
    only(patient(fleet, host, absent), "room", NOTE, "not on the host yet")
    only(patient(fleet, host, {**absent, health.DOCKER_ROOM: 2**30}), "room", ERROR, "no room for an image", "1.0 GiB are free")
    folder = next(iter(doctor.weights(fleet, host).values())).fact
    half: dict[Fact[Any], Any] = {folder: Folder(True, 2**30)}
    only(patient(fleet, host, half), "room", WARNING, "1.0 GiB of 28.8 GiB")
    little = {**half, facts.disk_fact(host.models_dir): Disk(2**30, writable=True)}
    assert [one.severity for one in said(patient(fleet, host, little), "room")] == [ERROR, WARNING]


@pytest.mark.parametrize(
    ("folder", "severity", "word"),
    [
        (Folder(True, 2**40, mixed=True), ERROR, "of two revisions"),
        (Folder(True, 2**40, lost=2), WARNING, "2 fetched files are missing"),
        (Folder(False, 2**40, lost=1), WARNING, "no config.json"),
    ],
)
def test_weights_are_well_only_where_a_deploy_would_take_them(
    fleet: Fleet, host: Host, folder: Folder, severity: DoctorSeverity, word: str
) -> None:
    """The draft's size is not declared: what there is of it says nothing."""
    draft = doctor.weights(fleet, host)["qwen3.8-27b-dflash2"]
    found = only(patient(fleet, host, {draft.fact: folder}), "room", severity, word, "./ops fetch")
    assert "qwen3.8-27b-dflash2" in found.what


def test_ports_of_a_router_count_too(fleet: Fleet) -> None:
    host = fleet.hosts["node2"]
    taken = base(ports=[port(30002, 5, "nginx"), port(29000, 6, "prometheus"), port(30001, 7, "x", "udp"), port(22, 8, "sshd")])
    assert [one.what for one in said(patient(fleet, host, taken), "ports")] == [
        "the port of the router is taken",
        "the port of the router's metrics is taken",
    ]


def test_weights_are_those_that_the_workers_load(fleet: Fleet) -> None:
    """A worker may have no draft, or one of its own."""
    host = fleet.hosts["node2"]
    other = host.workers["b"].model_copy(update={"engine": {"draft": {"model": "other"}}})
    without = host.workers["a"].model_copy(update={"engine": {"draft": None}})
    known = fleet.model_copy(update={"models": {**fleet.models, "other": fleet.models["qwen3.8-27b-dflash2"]}})
    assert list(doctor.weights(known, host.model_copy(update={"workers": {"a": without}}))) == ["qwen3.8-27b-fp8"]
    both = host.model_copy(update={"workers": {"a": host.workers["a"], "b": other}})
    assert list(doctor.weights(known, both)) == ["qwen3.8-27b-fp8", "qwen3.8-27b-dflash2", "other"]


def test_only_dockers_own_listener_stands_for_a_container(fleet: Fleet, host: Host) -> None:
    """A container that publishes the same port at another address does not answer for whoever has it here."""
    beside = base(containers=[NEIGHBOUR], ports=[port(30000, 5, "nginx")])
    only(patient(fleet, host, beside), "ports", ERROR, "worker a is taken", "nginx")
    unknown = base(containers=[replace(NEIGHBOUR, status="exited")], ports=[port(30000, 8, "docker-proxy")])
    only(patient(fleet, host, unknown), "ports", ERROR, "worker a is taken", "docker-proxy")


def test_image_without_digest_is_a_note(fleet: Fleet, host: Host) -> None:
    images = {**fleet.images, "sglang": fleet.images["sglang"].model_copy(update={"digest": None})}
    unpinned = fleet.model_copy(update={"images": images})
    only(patient(unpinned, host), "room", NOTE, "./ops pin")


def test_holders_that_are_ours_or_named_are_well(fleet: Fleet, host: Host) -> None:
    ours = container("lodger-worker-a", labels={"io.lodger.host": "node1"}, published=(30000,))
    everybody = base(
        containers=[ours, NEIGHBOUR],
        programs=[program("aigc-creator", 439)],
        processes=[
            in_container(1, ours, devices=on_gpus(0)),
            in_container(2, NEIGHBOUR, devices=on_gpus(1)),
            process(440, parents=(439, 1), devices=on_gpus(2)),
            process(5, cgroup="/system.slice/nvidia-persistenced.service ", devices=on_gpus(0, 1, 2, 3)),
            process(7, user="www-data", command="nginx"),  # listens, and has no GPU open
        ],
        ports=[port(30000, 7, "docker-proxy")],
    )
    assert [one for one in doctor.judge(patient(fleet, host, everybody)) if one.severity is not DoctorSeverity.OK] == []


def test_a_stranger_on_gpus_that_no_worker_needs_is_a_note(fleet: Fleet, host: Host) -> None:
    idle = host.model_copy(update={"workers": {}})
    only(patient(fleet, idle, base(processes=[STRANGER])), "holders", NOTE, "pid 900")


@pytest.mark.parametrize(
    ("ran", "severity", "word"),
    [
        (GpuContainerCheck("i", 0, "0, NVIDIA GeForce RTX 3090, 580.126.09\n" * 4), None, ""),
        (GpuContainerCheck("i", 0, "0, NVIDIA GeForce RTX 3090, 580.126.09\n" * 3), ERROR, "3 in the container"),
        (GpuContainerCheck("i", 125, "docker: Error\nnvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9\n"), ERROR, "cuda>=12.9"),
        (GpuContainerCheck("i", health.KILLED, ""), ERROR, "no end within"),
        (GpuContainerCheck("registry/i@sha256:1", absent=True), WARNING, "registry/i@sha256:1"),
        (GpuContainerCheck(), NOTE, "./ops pin"),
    ],
)  # fmt: skip
def test_probes(fleet: Fleet, host: Host, ran: GpuContainerCheck, severity: DoctorSeverity | None, word: str) -> None:
    at = patient(fleet, host, probe=ran)
    if severity is None:
        assert [one.severity for one in doctor.judge(at) if one.check == "probe"] == [DoctorSeverity.OK]
    else:
        only(at, "probe", severity, word)


# ---------------------------------------------------------------- what cannot be read


def damaged(at: HostReading, fact: Fact[Any], code: int, text: str) -> HostReading:
    return replace(at, read=at.read.replaced(fact, text, code))


@pytest.mark.parametrize("fact", [fact for fact in WELL if fact != facts.UNITS])
@pytest.mark.parametrize(("code", "text"), [(0, "strange"), (1, "cannot"), (health.KILLED, ""), (0, "\x00\n,,,,\n=\n")])
def test_a_reading_that_fails_takes_no_other_with_it(fleet: Fleet, host: Host, fact: Fact[Any], code: int, text: str) -> None:
    at = damaged(patient(fleet, host), fact, code, text)
    found = doctor.judge(at)
    assert {one.check for one in found} >= {check.__name__ for check in CHECKS} - {"probe", "boot", "gpus", "pcie", "topology", "throttling", "ecc"}  # fmt: skip
    document([DoctorResult("node1", found, private=doctor.private(fleet, host, at.read))], "0" * 40)


def test_what_hangs_is_an_error_and_what_reads_strangely_a_warning(fleet: Fleet, host: Host) -> None:
    only(damaged(patient(fleet, host), health.TOPOLOGY, health.KILLED, "half"), "topology", ERROR, "hangs")
    only(damaged(patient(fleet, host), health.TOPOLOGY, 0, "a table of old"), "topology", WARNING, "reads strangely")


def test_a_driver_that_hangs_is_said_once_and_who_holds_it_is_still_named(fleet: Fleet, host: Host) -> None:
    at = damaged(patient(fleet, host, base(processes=[STRANGER])), facts.DRIVER, health.KILLED, "")
    grave = [(one.check, one.what) for one in doctor.judge(at) if one.severity is DoctorSeverity.ERROR]
    assert grave == [
        ("driver", "driver could not be read: it hangs"),
        ("holders", "a GPU that a worker needs is held by a stranger"),
    ]


def test_without_dockerd_who_listens_is_still_named(fleet: Fleet, host: Host) -> None:
    at = damaged(patient(fleet, host, base(ports=[port(30000, 5, "nginx")])), facts.CONTAINERS, 1, "Cannot connect")
    only(at, "ports", ERROR, "nginx")


# ---------------------------------------------------------------- what is reported


def examined(*severities: DoctorSeverity) -> DoctorResult:
    return DoctorResult(
        "node1", [DoctorFinding(one, "a | b", "at\n10.1.2.3", "do", "log") for one in severities], round_trips=1
    )


@pytest.mark.parametrize(
    ("found", "code", "outcome"),
    [
        (examined(), 0, "satisfied"),
        (examined(WARNING, NOTE, DoctorSeverity.OK), 0, "satisfied"),
        (examined(WARNING, ERROR), 1, "failed"),
        (DoctorResult("node1", error=Refused("this is the wrong machine")), 3, "refused"),
    ],
)
def test_only_errors_end_with_1(found: DoctorResult, code: int, outcome: str) -> None:
    assert (found.exit_code, found.as_json()["outcome"]) == (code, outcome)
    json.dumps(found.as_json())


def test_text_has_what_is_not_well_and_counts_the_rest() -> None:
    text = examined(ERROR, WARNING, WARNING, DoctorSeverity.OK).text()
    assert text.endswith("node1: 1 error, 2 warnings, 0 notes, 1 ok (0.0 s, 1 round trip)")
    assert text.count("measured: at") == 3


def test_document_has_everything_in_one_row_each_and_nothing_private(fleet: Fleet, host: Host) -> None:
    changes = base(processes=[STRANGER], ports=[port(30000, 900, "python3")])
    at = patient(fleet, host, {**changes, health.NETWORK_MOUNTS: {"/data/x": Mount("nas:/x", "nfs4", "no answer")}})
    found = doctor.judge(at)
    text = document([DoctorResult("node1", found, private=doctor.private(fleet, host, at.read))], "f" * 40)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(found) + 1
    assert "train.py --api-key <secret>" in text
    for word in ("node1", "alice", "nas", "0" * 32, "sk-1", "docker.m.daocloud.io"):
        assert not re.search(rf"\b{re.escape(word)}\b", text), word
    assert document([examined(ERROR)], "f").count(r"a \| b | at <address-1> | do |") == 1


def test_manual_has_a_row_for_every_check() -> None:
    section = (ROOT / "README-ops.md").read_text().partition("\n## Doctor\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` ", section, re.MULTILINE) == [check.__name__ for check in CHECKS]


# ---------------------------------------------------------------- the probe's script

DOCKER = """#!/bin/sh
echo "$*" >> {log}
case $1 in
    image) exit {image} ;;
    run) {run} ;;
esac
"""


def probe(fleet: Fleet, host: Host, folder: Path, *, image: int = 0, run: str = "echo 0, gpu") -> subprocess.Popen[str]:
    """Start the probe's script where `docker` writes down what it is asked."""
    command = doctor.probing(fleet, host)
    assert command is not None
    (folder / "docker").write_text(DOCKER.format(log=folder / "log", image=image, run=run))
    (folder / "docker").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.Popen(["sh", "-c", command.script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})


def test_a_probe_pulls_nothing_has_no_network_and_is_removed(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    out, _ = probe(fleet, host, tmp_path).communicate(timeout=60)
    assert doctor.probed(fleet, host, out) == GpuContainerCheck(fleet.images["sglang"].reference, 0, "0, gpu\n")
    _, run, remove = (tmp_path / "log").read_text().splitlines()
    for option in (
        "--rm",
        "--pull never",
        "--network none",
        "--gpus all",
        "--label io.lodger.host=node1",
        "--name lodger-probe-",
    ):
        assert option in run
    assert re.fullmatch(r"rm -f lodger-probe-\d+", remove)


def test_a_probe_without_the_image_runs_nothing(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    out, _ = probe(fleet, host, tmp_path, image=1).communicate(timeout=60)
    assert doctor.probed(fleet, host, out).absent
    assert "run" not in (tmp_path / "log").read_text()


def test_a_probe_that_hangs_is_cut_off(fleet: Fleet, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lodger.checks.doctor.docker.PROBE_PATIENCE", 0.3)
    out, _ = probe(fleet, host, tmp_path, run="echo waiting; sleep 60").communicate(timeout=60)
    assert doctor.probed(fleet, host, out).code == health.KILLED


def test_a_probe_that_is_cut_off_takes_its_container_away(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    running = probe(fleet, host, tmp_path, run="sleep 60")
    end = time.monotonic() + 60
    while "--gpus" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else "") and time.monotonic() < end:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)  # SIGHUP is not to be caught by what was started with nohup
    running.wait(timeout=50)
    assert "rm -f lodger-probe-" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("text", ["", "ran\n", "ran\nhalf", "code=x", "Killed"])
def test_a_probe_that_says_nothing_sensible_has_failed(fleet: Fleet, host: Host, text: str) -> None:
    assert doctor.probed(fleet, host, text).code == 1


def test_a_host_without_a_pinned_image_is_not_probed(fleet: Fleet, host: Host) -> None:
    assert doctor.probing(fleet, host.model_copy(update={"workers": {}})) is None
