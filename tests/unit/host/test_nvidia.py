"""What is known of GPUs, asked of a deploy and of doctor: they never disagree."""

from __future__ import annotations

from typing import Any

import pytest

from lodger import inventory
from lodger.checks import doctor
from lodger.checks.doctor.report import DoctorFinding, DoctorSeverity
from lodger.host import facts
from lodger.host.ownership import declared
from lodger.inventory import Host
from lodger.states.gpus_free import GpusFree
from tests.unit.checks.doctor.support_doctor import ROOT, patient
from tests.unit.readings import HOST, base, container, driver, in_container, on_gpus, ours, process, program, readings
from tests.unit.states.support_states import A
from tests.unit.states.support_states import host as deploying

CREATING: dict[str, Any] = {
    "programs": [program("aigc-creator", 439)],
    "processes": [process(440, parents=(439,), devices=on_gpus(0, 1, 2, 3))],
}


def sharing(host: Host, *gpus: int) -> Host:
    """Return ``host`` with its neighbour on these GPUs only, and a second one on GPU 3."""
    creator = host.neighbours["aigc-creator"]
    only = creator.model_copy(update={"gpus": gpus or None})
    second = creator.model_copy(update={"gpus": (3,), "gpu_memory_mib": 2000})
    return host.model_copy(update={"neighbours": {"aigc-creator": only, "second": second}})


def deploy_says(host: Host, used: tuple[int, ...], **there: Any) -> str:
    state = GpusFree(A, HOST, neighbours=declared(host), promised=host.reserved_mib, replaced=[])
    return state.missing(readings(deploying(driver=driver(*used), **there)))


def doctor_says(host: Host, used: tuple[int, ...], **there: Any) -> list[DoctorFinding]:
    fleet = inventory.load(ROOT / "hosts")
    fleet = fleet.model_copy(update={"hosts": {**fleet.hosts, host.name: host}})
    said = doctor.judge(patient(fleet, host, {**base(**there), facts.DRIVER: driver(*used)}))
    return [one for one in said if one.check == "holders" and one.severity is DoctorSeverity.WARNING]


@pytest.fixture
def host() -> Host:
    return inventory.load(ROOT / "hosts").hosts["node1"]


@pytest.mark.parametrize(("used", "idle"), [(0, True), (256, True), (300, True), (512, True), (513, False), (9000, False)])
def test_a_gpu_that_nobody_has_open_is_idle_to_both_or_to_neither(used: int, idle: bool, host: Host) -> None:
    alone = host.model_copy(update={"neighbours": {}})
    assert (deploy_says(alone, (0, used, 0, 0)) == "") == idle
    assert (doctor_says(alone, (0, used, 0, 0)) == []) == idle


@pytest.mark.parametrize(
    ("used", "too_much"),
    [
        ((0, 0, 0, 0), ""),
        ((0, 1024, 0, 2000), ""),
        ((0, 1500, 0, 3500), ""),
        ((900, 0, 0, 0), "900 MiB of GPU 0 are in use, 0 MiB are promised to neighbours"),
        ((0, 2000, 0, 0), "2000 MiB of GPU 1 are in use, 1024 MiB are promised to neighbours"),
        ((0, 0, 0, 4000), "4000 MiB of GPU 3 are in use, 3024 MiB are promised to neighbours"),
    ],
)
def test_neighbours_were_promised_memory_of_their_own_gpus_only(used: tuple[int, ...], too_much: str, host: Host) -> None:
    there = sharing(host, 1, 3)
    assert deploy_says(there, used, **CREATING) == too_much
    said = doctor_says(there, used, **CREATING)
    assert [one.measured for one in said] == ([too_much] if too_much else [])


def test_a_neighbour_that_a_deploy_replaces_was_promised_nothing_and_takes_nothing_from_it(host: Host) -> None:
    """It is stopped before the worker starts."""
    old = container("qwen38-fp8-sglang")
    there = {"containers": [old], "processes": [in_container(90, old, devices=on_gpus(0, 1, 2, 3))]}
    assert doctor_says(host, (20000,) * 4, **there) == []


def test_what_our_own_worker_holds_is_nobodys_excess(host: Host) -> None:
    """A worker that serves beside its neighbours fills the rest of each GPU."""
    mine = ours(A)
    there = {"containers": [mine], "processes": [in_container(90, mine, devices=on_gpus(0, 1, 2, 3))]}
    assert doctor_says(host, (23000,) * 4, **there) == []
