"""Who answers for a process, asked of everybody who asks: deploy, driver upgrade, doctor, and what brings a worker back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lodger import inventory
from lodger.checks import doctor
from lodger.checks.doctor.report import DoctorSeverity
from lodger.host import facts, ownership, paths
from lodger.inventory import Fleet
from lodger.release.render import render
from lodger.run import footprint
from tests.unit.checks.doctor.support_doctor import ROOT, patient
from tests.unit.readings import HOST, base, container, in_container, on_gpus, process, program, readings
from tests.unit.release.support_resume import Stage
from tests.unit.states.support_driver import GOAL, at
from tests.unit.states.support_pauses import UNTIL, WAY, A
from tests.unit.states.support_states import FREE
from tests.unit.states.support_states import host as deploying


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    found = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in found.images.items()}
    return found.model_copy(update={"images": images})


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
    assert blocker.what == "pid 5 is a daemon of the driver (/usr/bin/nvidia-persistenced) that its unit did not start"
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


# ---------------------------------------------------------------- what is ours

LABELS = {"io.lodger.host": HOST}
BESIDE = container("lodger-worker-b", labels=LABELS)
OURS: dict[str, dict[str, Any]] = {
    "a container with our label": {"containers": [BESIDE], "processes": [in_container(6, BESIDE, devices=GPUS)]},
    "one that somebody renamed": {
        "containers": [renamed := container("x", labels=LABELS)],
        "processes": [in_container(6, renamed, devices=GPUS)],
    },
    "a step of ours": {"processes": [in_unit("lodger-step-driver-load.service", command="nvidia-smi")]},
    "a worker's unit": {"processes": [in_unit("lodger-worker-b.service", command="docker compose up")]},
}
NOT_OURS: dict[str, dict[str, Any]] = {
    "a container with our name": {
        "containers": [named := container("lodger-worker-b")],
        "processes": [in_container(6, named, devices=GPUS)],
    },
    "a container of another host's": {
        "containers": [other := container("lodger-worker-b", labels={"io.lodger.host": "node9"})],
        "processes": [in_container(6, other, devices=GPUS)],
    },
    "a user's own unit": {"processes": [by_hand("x", f"{MANAGER}/app.slice/lodger-step-x.service")]},
    "a unit in a container": {"processes": [by_hand("x", f"/docker/{'a' * 64}/system.slice/lodger-step-x.service")]},
    "a unit that only begins so": {"processes": [in_unit("lodgers.service")]},
    "a program of that name": {
        "programs": [program("lodger-step-x", 4)],
        "processes": [in_unit("supervisor.service", parents=(4,))],
    },
}


def is_foreign_to_the_footprint(there: dict[str, Any]) -> bool:
    return any(kind == "gpu process" for kind, _ in footprint.of(readings(base(**there)), HOST))


def is_foreign_to_a_deploy(there: dict[str, Any]) -> bool:
    return any(not blocker.awaits for blocker in FREE.blockers(readings(deploying(**there))))


def is_foreign_to_an_upgrade(there: dict[str, Any]) -> bool:
    return GOAL.strangers(at(**there)) != []


def is_foreign_to_doctor(there: dict[str, Any]) -> bool:
    fleet = inventory.load(ROOT / "hosts")
    said = doctor.judge(patient(fleet, fleet.hosts[HOST], base(**there)))
    return DoctorSeverity.ERROR in {found.severity for found in said if found.check == "holders"}


FOREIGN: list[Callable[[dict[str, Any]], bool]] = [
    is_foreign_to_the_footprint,
    is_foreign_to_a_deploy,
    is_foreign_to_an_upgrade,
    is_foreign_to_doctor,
]


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("name", OURS)
def test_what_is_ours_is_ours_to_everybody(foreign: Callable[[dict[str, Any]], bool], name: str) -> None:
    assert not foreign(OURS[name])


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("name", NOT_OURS)
def test_what_only_looks_like_ours_is_foreign_to_everybody(foreign: Callable[[dict[str, Any]], bool], name: str) -> None:
    assert foreign(NOT_OURS[name])


def test_what_a_release_puts_on_a_host_is_known_as_ours(fleet: Fleet) -> None:
    """Label and mark stand as text in the templates."""
    release = render(fleet, fleet.hosts["node2"])
    units = [file.content for file in release.files if file.path.startswith("units/")]
    composes = [YAML(typ="safe").load(file.content) for file in release.files if file.path.endswith("compose.yml")]
    labels = [service["labels"] for compose in composes for service in compose["services"].values()]
    assert len(units) == len(composes) == len(release.services)
    assert all(ownership.is_own_file(text, "node2") and not ownership.is_own_file(text, "node1") for text in units)
    assert [one for one in labels if not ownership.is_own_container(container("x", labels=one), "node2")] == []
    way_back = WAY.files(A, UNTIL)
    assert [path for path, text in way_back.items() if not ownership.is_own_file(text, HOST)] == []
    assert all(service.unit.startswith(paths.PREFIX) for service in release.services)
