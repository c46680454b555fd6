"""Each check on a host that is well and on one that is not; the report's words; and a probe that leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lodger.checks import doctor
from lodger.checks.doctor.reading import GpuContainerCheck, HostReading
from lodger.checks.doctor.report import DoctorFinding, DoctorSeverity
from lodger.host import facts
from lodger.host.facts import health
from lodger.host.facts.base import Fact
from lodger.host.facts.health import Topology
from lodger.host.facts.machine import Disk
from lodger.host.facts.weights import Folder
from lodger.inventory import Fleet, Host
from tests.unit.checks.doctor.support_doctor import (
    ERROR,
    FULL,
    NEIGHBOUR,
    NOTE,
    STRANGER,
    WARNING,
    WELL,
    damaged,
    only,
    pairs,
    patient,
)
from tests.unit.readings import base, container, driver, in_container, on_gpus, port, process, program, proxy


def said(at: HostReading, check: str) -> list[DoctorFinding]:
    """Return what a check says that is not well."""
    return [one for one in doctor.judge(at) if one.check == check and one.severity is not DoctorSeverity.OK]


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
    unknown = base(
        containers=[replace(NEIGHBOUR, status="exited")], ports=[port(30000, 8, "docker-proxy")], processes=[proxy(8)]
    )
    only(patient(fleet, host, unknown), "ports", ERROR, "worker a is taken", "unit docker.service")


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
            proxy(7),  # listens, and has no GPU open
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
