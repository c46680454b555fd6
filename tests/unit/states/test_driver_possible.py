"""The driver upgrade: who is in its way, what is removed by force, in which order modules go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lodger.host.facts import packages
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import Dpkg, Kernel, PackageChange, simulated
from lodger.states.dpkg_free import DpkgFree
from lodger.states.driver_installed import DriverInstalled
from lodger.states.only_driver_changes import OnlyDriverChanges
from lodger.states.upgrade_possible import UpgradePossible
from tests.unit.readings import HOST, container, in_container, process, program
from tests.unit.states.support_driver import CONFLICTS, GOAL, NEW, OLD, SAID, at, stack


def test_the_goal_needs_module_library_gpus_packages_and_holds() -> None:
    assert GOAL.reached(at(NEW))
    assert GOAL.loaded(at(OLD)) == f"the kernel has {OLD}, not {NEW}"
    free = at(NEW, dpkg=Dpkg(stack(NEW, held=False), "", ""))
    assert "is not held" in GOAL.held(free)
    assert GOAL.reached(free), "nobody has to leave the GPUs for a hold"
    assert "unfinished work" in GOAL.installed(at(NEW, dpkg=Dpkg(stack(NEW), "half installed", "")))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"kernel": Kernel("6.8.0", False, (OLD,), {})}, "the headers of the running kernel 6.8.0 are missing"),
        ({"dpkg": Dpkg(stack(OLD), "nvidia-utils-545 is half installed", "")}, "dpkg has unfinished work"),
        ({"processes": [process(9, devices=("/dev/nvidia0",))]}, "pid 9 of user alice has a GPU open (process 9)"),
    ],
)
def test_what_is_in_the_way_of_an_upgrade_and_of_nothing_once_it_is_done(values: dict[str, Any], what: str) -> None:
    assert [one.what for one in UpgradePossible(GOAL).blockers(at(OLD, **values))] == [what]
    assert UpgradePossible(GOAL).blockers(at(NEW)) == []


def test_a_package_system_at_work_is_no_broken_one() -> None:
    busy = Dpkg(stack(OLD), "nvidia-utils-545 is half configured", "pid 7 (unattended-upgrade)")
    assert UpgradePossible(GOAL).blockers(at(OLD, dpkg=busy)) == []
    assert DpkgFree(GOAL).missing(at(OLD, dpkg=busy)) == "dpkg is locked by pid 7 (unattended-upgrade)"
    assert DpkgFree(GOAL).missing(at(NEW, dpkg=replace(busy, packages=stack(NEW), complaint=""))) == ""


def test_a_gpu_user_is_known_by_any_name_of_its_owner() -> None:
    app = container("captioning-app-1", labels={"com.docker.compose.project": "captioning"})
    ours = container("lodger-worker-a", labels={"io.lodger.host": HOST})
    known = [process(5, parents=(439,), devices=("/dev/nvidia0",)), in_container(6, app, devices=("/dev/nvidia1",))]
    mine = in_container(7, ours, devices=("/dev/nvidia1",))
    read = at(processes=[*known, mine], containers=[app, ours], programs=[program("images:aigc-creator")])
    assert GOAL.strangers(read) == []
    assert [str(owner) for _, owner in GOAL.holders(read)] == [
        "program images:aigc-creator",
        "container captioning-app-1",
        "container lodger-worker-a",
    ]


def test_a_stranger_is_named_with_command_and_the_line_that_declares_it() -> None:
    (blocker,) = GOAL.strangers(
        at(processes=[in_container(8, there := container("vae"), devices=("/dev/nvidia0",))], containers=[there])
    )
    assert blocker.cause == "its command is `python3 train.py`"
    assert blocker.hint == "ask root to stop it, or declare it: neighbours: {vae: {kind: container, policy: pause}}"


def lines(*rows: str) -> Facts:
    return Facts({CONFLICTS.name: (0, "\n".join(rows))})


def test_a_file_is_in_the_way_only_where_its_package_is_not_replaced_anyway() -> None:
    found = lines(
        "nvidia-compute-utils-545|nvidia-persistenced|nvidia-compute-utils-580||/usr/bin/nvidia-powerd",
        "nvidia-utils-545|nvidia-utils|nvidia-utils-580|nvidia-utils|/usr/bin/nvidia-smi",
        "nvidia-old-545||nvidia-utils-580|nvidia-utils, nvidia-old-545|/usr/bin/a|b",
        "nvidia-cut-545|x (= 1), nvidia-cut|nvidia-utils-580|nvidia-cut (<< 2)|/usr/bin/c",
    )[CONFLICTS]
    assert [(one.owner, one.declared) for one in found] == [
        ("nvidia-compute-utils-545", False),
        ("nvidia-utils-545", True),
        ("nvidia-old-545", True),
        ("nvidia-cut-545", False),
    ]
    assert found[2].path == "/usr/bin/a|b"
    read = at(conflicts=found[:2])
    (install,) = DriverInstalled(GOAL).act(read)
    assert f"nvidia-utils-580={NEW}-0ubuntu1" in install.script
    assert "NEEDRESTART_SUSPEND=1" in install.script, "or services of others are restarted"
    assert "dpkg --remove --force-depends nvidia-compute-utils-545\napt-get install" in install.script
    assert DriverInstalled(GOAL).blockers(read) == []


def test_a_file_of_somebody_elses_package_stops_the_upgrade() -> None:
    found = lines("gpu-tools||nvidia-utils-580||/usr/bin/nvidia-smi")[CONFLICTS]
    what = "gpu-tools owns /usr/bin/nvidia-smi, which the package nvidia-utils-580 also contains"
    read = at(conflicts=found)
    assert OnlyDriverChanges(GOAL).missing(read) == what
    for state in (OnlyDriverChanges(GOAL), DriverInstalled(GOAL)):
        assert [one.what for one in state.blockers(read)] == [what]
    assert OnlyDriverChanges(GOAL).blockers(at(NEW, conflicts=found)) == []


def test_what_apt_would_do_is_read() -> None:
    assert simulated(SAID).changes == (
        PackageChange("cuda-runtime-12-3", "12.3.2-1", ""),
        PackageChange("cuda-drivers-545", "545.23.06-1", ""),
        PackageChange("libnvidia-compute-580", "", "580.126.09-0ubuntu1"),
        PackageChange("nvidia-modprobe", "545.23.06-1", "580.126.09-1"),
        PackageChange("libdrm2", "2.4.1-1", "2.4.9-1"),
        PackageChange("libtirpc3", "", "1.3"),
    )
    broken = simulated(
        "The following packages have unmet dependencies:\n nvidia-dkms-580 : Depends: dkms but it is not installable\n"
        "E: Unable to correct problems, you have held broken packages.\n"
    )
    assert broken.changes == ()
    assert broken.complaint == (
        "nvidia-dkms-580 : Depends: dkms but it is not installable; "
        "E: Unable to correct problems, you have held broken packages."
    )


def test_whatever_else_apt_would_touch_is_a_refusal_that_names_it() -> None:
    read = at(simulation=simulated(SAID))
    assert [one.what for one in OnlyDriverChanges(GOAL).blockers(read)] == [
        "apt would remove cuda-runtime-12-3, which is not a package of the driver",
        "apt would replace libdrm2, which is not a package of the driver",
        "apt would add libtirpc3, which is not a package of the driver",
    ]
    assert [one.what for one in DriverInstalled(GOAL).blockers(read)] == [
        one.what for one in OnlyDriverChanges(GOAL).blockers(read)
    ]


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        *((name, True) for name in ("nvidia-dkms-545", "libnvidia-compute-580-server", "nvidia-firmware-545-545.23.06")),
        *((name, True) for name in ("cuda-drivers", "cuda-drivers-545", "nvidia-modprobe", "linux-modules-nvidia-545-generic")),
        *((name, False) for name in ("nvidia-container-toolkit", "libnvidia-container1", "nvidia-cuda-toolkit", "dkms")),
        *((name, False) for name in ("cuda-12-3", "libnvidia-compute-545:i386", "linux-headers-6.8.0")),
    ],
)
def test_what_belongs_to_a_driver_is_known_by_its_name(name: str, mine: bool) -> None:
    assert packages.of_driver(name) is mine
