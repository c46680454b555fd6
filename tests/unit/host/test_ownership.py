"""Who answers for a process, asked of everybody who asks: deploy, driver upgrade, doctor, and what brings a worker back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lodger import inventory
from lodger.checks import doctor
from lodger.checks.doctor.report import DoctorSeverity
from lodger.host import facts
from tests.unit.checks.doctor.support_doctor import ROOT, patient
from tests.unit.readings import base, on_gpus, process, readings
from tests.unit.release.support_resume import Stage
from tests.unit.states.support_driver import GOAL, at
from tests.unit.states.support_pauses import WAY
from tests.unit.states.support_states import FREE
from tests.unit.states.support_states import host as deploying

# ---------------------------------------------------------------- the driver's own daemons

GPUS = on_gpus(0, 1, 2, 3)
SESSION, MANAGER = "/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-1000.slice/user@1000.service"


def in_unit(name: str, **changes: Any) -> facts.Process:
    return process(5, cgroup=f"/system.slice/{name} ", devices=GPUS, **{"user": "root", "command": "daemon", **changes})


def by_hand(command: str, cgroup: str = SESSION, **changes: Any) -> facts.Process:
    return process(5, command=command, cgroup=f"{cgroup} ", devices=GPUS, **changes)


DAEMONS = {
    "persistenced": in_unit("nvidia-persistenced.service", command="/usr/bin/nvidia-persistenced --user nvidia-persistenced"),
    "persistenced under its own user": in_unit("nvidia-persistenced.service", user="nvidia-persistenced"),
    "powerd": in_unit("nvidia-powerd.service"),
    "fabricmanager": in_unit("nvidia-fabricmanager.service", command="/usr/bin/nv-fabricmanager -c /usr/share/nvidia/x.cfg"),
    "dcgm": in_unit("nvidia-dcgm.service", command="/usr/bin/nv-hostengine -n --service-account nvidia-dcgm"),
    "dcgm of old": in_unit("dcgm.service", command="/usr/bin/nv-hostengine -n"),
    "imex": in_unit("nvidia-imex.service", command="/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg"),
}
OTHERS = {
    "an argument": by_hand("python3 train.py --note nvidia-persistenced"),
    "a program of that name": by_hand("/home/alice/nvidia-persistenced --user x"),
    "the path in its own words": by_hand("/usr/bin/nvidia-persistenced --user x"),
    "the same, and powerd's": by_hand("/usr/bin/nvidia-powerd"),
    "a user's own unit": by_hand("train", f"{MANAGER}/app.slice/nvidia-persistenced.service"),
    "a unit in a container": by_hand("train", f"/docker/{'a' * 64}/system.slice/nvidia-persistenced.service", user="root"),
    "a unit in a pod": by_hand("train", "/kubepods.slice/cri-a.scope/system.slice/nvidia-powerd.service", user="root"),
    "another unit": in_unit("train.service", command="/usr/bin/nvidia-persistenced"),
    "another unit's part": in_unit("train.service/nvidia-persistenced.service"),
}


def deploy_is_content(one: facts.Process, _: Path) -> bool:
    return FREE.blockers(readings(deploying(processes=[one]))) == []


def upgrade_is_content(one: facts.Process, _: Path) -> bool:
    return GOAL.strangers(at(processes=[one])) == []


def doctor_is_content(one: facts.Process, _: Path) -> bool:
    fleet = inventory.load(ROOT / "hosts")
    said = doctor.judge(patient(fleet, fleet.hosts["node1"], base(processes=[one])))
    return DoctorSeverity.ERROR not in {found.severity for found in said if found.check == "holders"}


def resume_is_content(one: facts.Process, folder: Path) -> bool:
    stage = Stage(folder, WAY)
    stage.holder(one.pid, one.command, one.cgroup.strip())
    return stage.others() == ""


ASKED: list[Callable[[facts.Process, Path], bool]] = [
    deploy_is_content,
    upgrade_is_content,
    doctor_is_content,
    resume_is_content,
]


@pytest.mark.parametrize("content", ASKED)
@pytest.mark.parametrize("name", DAEMONS)
def test_nobody_minds_the_drivers_own_daemon(content: Callable[[facts.Process, Path], bool], name: str, tmp_path: Path) -> None:
    assert content(DAEMONS[name], tmp_path)


@pytest.mark.parametrize("content", ASKED)
@pytest.mark.parametrize("name", OTHERS)
def test_whoever_only_looks_like_it_is_a_stranger_to_everybody(
    content: Callable[[facts.Process, Path], bool], name: str, tmp_path: Path
) -> None:
    assert not content(OTHERS[name], tmp_path)


# ---------------------------------------------------------------- a daemon that root runs without its unit

BY_ROOT = by_hand("persistenced", "/system.slice/rc-local.service", program="/usr/bin/nvidia-persistenced", by_root=True)
FAKES = {
    "somebody else runs it": replace(BY_ROOT, by_root=False),
    "root runs something else": replace(BY_ROOT, program=""),
    "a ledger of before does not say": replace(BY_ROOT, program=None, by_root=False),
}


def test_a_daemon_that_root_started_holds_up_no_deploy_and_stays_until_a_person_stops_it() -> None:
    assert deploy_is_content(BY_ROOT, Path())
    assert doctor_is_content(BY_ROOT, Path())
    (blocker,) = GOAL.strangers(at(processes=[BY_ROOT]))
    assert blocker.what == "pid 5 is a daemon of the driver (/usr/bin/nvidia-persistenced) that no unit of its own runs"
    assert "kill 5" in blocker.hint
    assert GOAL.holders(at(processes=[BY_ROOT])) != [], "the module cannot be unloaded under it"
    assert GOAL.holders(at(processes=[DAEMONS["persistenced"]])) == []


@pytest.mark.parametrize("name", FAKES)
def test_neither_the_program_alone_nor_root_alone_makes_a_daemon(name: str) -> None:
    assert not deploy_is_content(FAKES[name], Path())
    assert not upgrade_is_content(FAKES[name], Path())
    assert not doctor_is_content(FAKES[name], Path())


@pytest.mark.parametrize(
    ("uid", "program", "namespace", "content"),
    [
        (0, "/usr/bin/nvidia-persistenced", "the host's", True),
        (0, "/usr/bin/nvidia-persistenced (deleted)", "the host's", True),
        (1000, "/usr/bin/nvidia-persistenced", "the host's", False),
        (0, "/usr/bin/python3", "the host's", False),
        (0, "/usr/bin/nvidia-persistenced", "a container's", False),
    ],
)
def test_what_brings_a_worker_back_knows_it_by_the_same(
    uid: int, program: str, namespace: str, content: bool, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, WAY)
    stage.holder(5, "x", SESSION)
    stage.runs(5, program, uid, namespace)
    assert (stage.others() == "") == content
