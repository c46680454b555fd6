"""GPUs given back: what is recorded and said, until when, what a run then asks of the worker, and what brings it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.errors import Refused, UsageError
from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import HostFile
from lodger.inventory import Fleet
from lodger.inventory.values import give_names
from lodger.plans import runbook
from lodger.plans.deploy import Deploy, difference
from lodger.plans.expand import names
from lodger.plans.maintenance import Maintenance
from lodger.plans.pause import PauseWorker, ResumeWorker
from lodger.plans.request import Request
from lodger.plans.rollback import Rollback
from lodger.release.render import render
from lodger.run.ledger import Ledger
from lodger.states.pool_place import PoolPlace
from lodger.states.target import Target, TargetRelease
from tests.unit.readings import base, deployed, driver, installed, readings, record
from tests.unit.states.support_pauses import CONDITION, UNTIL, A, stands

HOSTS = CODE / "hosts"


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    found = inventory.load(HOSTS)
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in found.images.items()}
    return found.model_copy(update={"images": images})


def asked(request: Request, read: Facts) -> list[str]:
    return [name for name in names(request.plan(read, None).steps) if name.endswith(("(a)", "(worker-a)"))]


LEFT_ALONE = ["service_installed(worker-a)", "worker_paused(a)"]


def test_a_deploy_and_a_rollback_ask_nothing_of_a_paused_worker_but_its_files(fleet: Fleet) -> None:
    read = stands(UNTIL)
    deploy = Deploy(fleet, fleet.hosts["node1"], runbook.load("deploy"), "r1", contains=lambda _: True)
    assert asked(deploy, read) == LEFT_ALONE
    (line,) = deploy.plan(read, None).remarks
    assert line.startswith("worker a is paused by wang until 2026-11-29 18:00: this run leaves it so")
    assert "worker_ready(a)" in asked(deploy, stands(None))
    assert deploy.plan(stands(None), None).remarks == ()


def test_a_rollback_leaves_it_paused_unless_the_earlier_unit_would_start_it(fleet: Fleet) -> None:
    def standing(condition: str) -> Facts:
        files = installed("r1", A) | installed("r2", A) | record("paused/lodger-worker-a", UNTIL.text)
        files["/opt/lodger/releases/r1/units/lodger-worker-a.service"] = HostFile(f"[Unit]\n{condition}\n", 0o644, "root")
        return readings(base(deployed=deployed(("r1", "r2"), links={"worker-a": "r2"}, files=files)))

    plan = Rollback(fleet, fleet.hosts["node1"], runbook.load("rollback"))
    assert asked(plan, standing(CONDITION)) == LEFT_ALONE
    with pytest.raises(Refused, match="next boot"):
        plan.plan(standing(""), None)


@pytest.mark.parametrize("name", ["reboot", "driver-upgrade"])
def test_a_reboot_and_a_driver_upgrade_say_once_that_it_stays_paused(name: str, fleet: Fleet) -> None:
    plan = Maintenance(fleet, fleet.hosts["node1"], runbook.load(name), now=True)
    read = stands(UNTIL)
    assert asked(plan, read) == ["worker_paused(a)"]
    assert plan.plan(read, None).remarks


@pytest.mark.parametrize("verb", ["deploy", "rollback", "resume"])
def test_a_worker_leaves_neighbours_what_each_gpu_was_promised(verb: str, fleet: Fleet) -> None:
    node1 = fleet.hosts["node1"]
    only = {"aigc-creator": node1.neighbours["aigc-creator"].model_copy(update={"gpus": (1,)})}
    host, book = node1.model_copy(update={"neighbours": give_names(only)}), runbook.load(verb)
    requests: dict[str, Callable[[], Request]] = {
        "deploy": lambda: Deploy(fleet, host, book, "r1", contains=lambda _: True),
        "rollback": lambda: Rollback(fleet, host, book),
        "resume": lambda: ResumeWorker(fleet, host, book, "a"),
    }
    files = installed("r1", A) | installed("r2", A)
    read = readings(base(deployed=deployed(("r1", "r2"), links={"worker-a": "r2"}, files=files)))
    (free,) = [one.state for one in requests[verb]().plan(read, None).steps if one.state.name == "gpus_free(worker-a)"]
    there: dict[facts.Fact[Any], Any] = {facts.DRIVER: driver(0, 1500, 0, 0), facts.unit_fact(A.unit): None}
    assert free.missing(readings(base() | there)) == ""
    there[facts.DRIVER] = driver(1500, 0, 0, 0)
    assert free.missing(readings(base() | there)) == "1500 MiB of GPU 0 are in use, 0 MiB are promised to neighbours"


def test_a_plan_shows_no_difference_for_what_a_pause_left(fleet: Fleet) -> None:
    shown = difference(stands(UNTIL)[facts.DEPLOYED], render(fleet, fleet.hosts["node1"]))
    assert "resume" not in shown


def test_a_pause_and_a_resume_are_lists_of_states(fleet: Fleet) -> None:
    node1 = fleet.hosts["node1"]
    read = stands(None)
    pause = PauseWorker(fleet, node1, runbook.load("pause"), "a", "wang", "18:00")
    assert asked(pause, read) == ["worker_leaving(a)", "service_stopped(worker-a)", "worker_paused(a)"]
    resume = ResumeWorker(fleet, node1, runbook.load("resume"), "a")
    assert asked(resume, read) == [
        "gpus_free(worker-a)",
        "worker_unpaused(a)",
        "worker_ready(a)",
        "smoke_passed(a)",
        "worker_joined(a)",
    ]


def test_a_worker_that_is_not_there_is_bad_usage_or_a_refusal(fleet: Fleet) -> None:
    node1, book = fleet.hosts["node1"], runbook.load("pause")
    with pytest.raises(UsageError, match="has no worker z"):
        PauseWorker(fleet, node1, book, "z", who="wang")
    with pytest.raises(UsageError, match="is not a time"):
        PauseWorker(fleet, node1, book, "a", who="wang", until="soon")
    with pytest.raises(Refused, match="is already over"):
        PauseWorker(fleet, node1, book, "a", who="wang", until="10:00").plan(stands(None), None)
    with pytest.raises(Refused, match="not deployed"):
        ResumeWorker(fleet, node1, runbook.load("resume"), "a").plan(readings(base()), None)


def test_an_unfinished_pause_of_another_worker_is_ended_first(fleet: Fleet) -> None:
    node2 = fleet.hosts["node2"]
    plan = PauseWorker(fleet, node2, runbook.load("pause"), "a", who="wang")
    with pytest.raises(Refused, match="did not finish"):
        plan.plan(stands(None), Ledger("r", "pause", {"worker": "b"}, "wang", "{}"))


@pytest.mark.parametrize(("others", "told"), [({}, True), ({"http://else:1": True}, False), ({"http://else:1": False}, True)])
def test_pausing_the_only_worker_says_that_the_pool_answers_nothing(others: dict[str, bool], told: bool, fleet: Fleet) -> None:
    node2 = fleet.hosts["node2"]
    plan = PauseWorker(fleet, node2, runbook.load("pause"), "a", who="wang")
    files = installed("r1", replace(A, pool="qwen38"))
    place = PoolPlace.of(Target(fleet, node2, TargetRelease()), replace(A, pool="qwen38"))
    (entry,) = place.entries
    read = readings(
        {
            **base(deployed=deployed(("r1",), links={"worker-a": "r1"}, files=files)),
            place.rotation: {entry.router: {entry.worker: True, **others}},
            place.identities: {},
        }
    )
    (paused,) = [step.state for step in plan.plan(read, None).steps if step.state.name == "worker_paused(a)"]
    assert bool(paused.remarks(read)) == told
