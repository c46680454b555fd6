"""The driver upgrade: who is in its way, what is removed by force, in which order modules go."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lodger.errors import StateFailed
from lodger.host.facts import packages
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import CACHED, DPKG, Dpkg, Package, Simulation, simulated
from lodger.states.driver_goal import DriverGoal
from lodger.states.driver_installed import DriverInstalled
from lodger.states.only_driver_changes import conflicts_fact
from lodger.states.packages_cached import PackagesCached
from lodger.states.upgrade_possible import UpgradePossible
from tests.unit.readings import HOST, readings
from tests.unit.states.support_driver import GOAL, NAMES, NEW, OLD, SAID, at, cached, host, stack


def test_what_apt_cannot_install_is_said_in_its_own_words_but_for_what_a_run_of_ours_left() -> None:
    unmet = Simulation((), "E: held broken packages")
    (blocker,) = UpgradePossible(GOAL).blockers(at(simulation=unmet))
    assert (blocker.what, blocker.cause) == (f"apt cannot install driver {NEW}", "E: held broken packages")
    half = at(simulation=unmet, dpkg=Dpkg(stack(OLD), "half installed", ""), ledger="{}")
    assert UpgradePossible(GOAL).blockers(half) == []


ALL_NEW = [(name, f"{NEW}-0ubuntu1") for name in NAMES]


def test_both_ways_are_downloaded_and_the_old_one_first() -> None:
    toolkit = Package("nvidia-container-toolkit", "ii", "1.17", False)
    helper = Package("nvidia-modprobe", "ii", "545.23.06-1", False)
    already = Package("nvidia-kernel-common-580", "ii", f"{NEW}-0ubuntu1", False)
    installed_ones = Dpkg({**stack(OLD), **{one.name: one for one in (toolkit, helper, already)}}, "", "")
    read = at(dpkg=installed_ones, simulation=simulated(SAID))
    old, new = PackagesCached(GOAL).act(read)
    assert f"libnvidia-compute-545={OLD}-0ubuntu1" in old.script
    assert "nvidia-modprobe=545.23.06-1" in old.script, "apt replaces it, so that the way back needs it"
    assert "nvidia-container-toolkit" not in old.script
    assert "nvidia-kernel-common" not in old.script
    assert f"nvidia-utils-580={NEW}-0ubuntu1" in new.script
    assert "nvidia-driver" not in new.script
    assert old.script.count("/var/cache/apt/archives/") == 5, "what no repository has any more may lie there"


def test_an_upgrade_within_a_branch_has_a_way_back() -> None:
    goal = DriverGoal(HOST, "545.29.06", 2, frozenset())
    offered = [(name, "545.29.06-0ubuntu1") for name in packages.stack(OLD)]
    facts_of = {
        **host(OLD),
        packages.candidates_fact(goal.version): dict(offered),
        packages.simulation_fact(goal.version): Simulation((), ""),
        conflicts_fact(goal.version): (),
    }
    old, _ = PackagesCached(goal).act(readings(facts_of))
    assert f"nvidia-dkms-545={OLD}-0ubuntu1" in old.script
    assert "which an undo needs" in PackagesCached(goal).missing(readings({**facts_of, CACHED: cached(*offered)}))
    there = {**facts_of, CACHED: cached(*offered, *stack(OLD).values())}
    assert PackagesCached(goal).missing(readings(there)) == ""
    before = readings(there)
    undo = DriverInstalled(goal).undo(before, readings({**there, DPKG: Dpkg(stack("545.29.06"), "", "")}))
    assert isinstance(undo, list)
    assert f"/nvidia-dkms-545_{OLD}-0ubuntu1_amd64.deb" in undo[0].script
    assert "545.29.06" not in undo[0].script
    assert "dpkg --purge" not in undo[0].script


def test_the_way_back_is_what_was_there_before_and_nothing_of_an_earlier_upgrade() -> None:
    earlier = Package("nvidia-utils-470", "ii", "470.1-1", False)
    everything = cached(*stack(OLD).values(), *ALL_NEW, earlier)
    toolkit = Package("nvidia-container-toolkit", "ii", "1.17", False)  # which a colleague installs meanwhile
    before = at(cached=everything)
    now = at(cached=everything, dpkg=Dpkg({**stack(NEW), toolkit.name: toolkit}, "", ""))
    undo = DriverInstalled(GOAL).undo(before, now)
    assert isinstance(undo, list)
    assert "470" not in undo[0].script
    assert "container" not in undo[0].script
    assert undo[0].script.count(f"_{OLD}-0ubuntu1_") == 4
    assert "NEEDRESTART_SUSPEND=1" in undo[0].script
    assert DriverInstalled(GOAL).undone(before, at(dpkg=Dpkg({**stack(OLD), toolkit.name: toolkit}, "", ""))) == ""
    with pytest.raises(StateFailed, match=r"the package to go back to, \S+ 545.23.06-0ubuntu1, is not in"):
        DriverInstalled(GOAL).undo(before, at(cached={}, dpkg=Dpkg(stack(NEW), "", "")))


def test_apts_marks_come_back_with_the_packages() -> None:
    utils = replace(stack(OLD)["nvidia-utils-545"], auto=True)
    before = at(cached=cached(*stack(OLD).values()), dpkg=Dpkg({**stack(OLD), utils.name: utils}, "", ""))
    undo = DriverInstalled(GOAL).undo(before, at(cached=cached(*stack(OLD).values()), dpkg=Dpkg(stack(NEW), "", "")))
    assert isinstance(undo, list)
    assert "apt-mark auto nvidia-utils-545\n" in undo[0].script
    assert DriverInstalled(GOAL).undone(before, at(dpkg=Dpkg(stack(OLD), "", ""))) == "nvidia-utils-545 is not as it was"


def test_what_neither_way_needs_is_removed_from_the_cache() -> None:
    earlier = Package("nvidia-utils-470", "ii", "470.1-1", False)
    old, _ = PackagesCached(GOAL).act(at(cached=cached(earlier, *stack(OLD).values())))
    assert old.script.startswith(f"rm -f {packages.CACHE}/nvidia-utils-470_470.1-1_amd64.deb; ")
    assert "545" not in old.script.partition(";")[0]


def test_a_run_that_goes_on_keeps_the_way_back_of_the_first() -> None:
    dpkg = "@packages\n" + "".join(f"hi |{one.name}|{one.version}\n" for one in stack(OLD).values())
    before = Facts({DPKG.name: (0, f"{dpkg}@held\n{' '.join(stack(OLD))}\n@complaint\n@busy\n")})
    text = json.dumps({"stops": [], "before": before.dump()})
    common = Package("nvidia-kernel-common-580", "ii", f"{NEW}-0ubuntu1", False)  # which apt brought along
    dpkg_now = Dpkg({**stack(NEW), common.name: common}, "half configured", "")
    read = at(NEW, dpkg=dpkg_now, cached=cached(*stack(OLD).values(), common), ledger=text)
    assert PackagesCached(GOAL).missing(read) == ""
    assert "rm -f" not in PackagesCached(GOAL).act(read)[0].script
    assert "which an undo needs" in PackagesCached(GOAL).missing(read.replaced(CACHED, ""))
