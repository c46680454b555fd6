"""The driver upgrade: who is in its way, what is removed by force, in which order modules go."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lodger.errors import StateFailed
from lodger.host import facts
from lodger.host.facts import packages
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.packages import (
    CACHED,
    DPKG,
    KERNEL,
    Dpkg,
    Kernel,
    Package,
    PackageChange,
    Simulation,
    simulated,
    unload_order,
)
from lodger.host.ownership import Owner
from lodger.states.base import NoUndo
from lodger.states.dpkg_free import DpkgFree
from lodger.states.driver_goal import DriverGoal
from lodger.states.driver_installed import DriverInstalled
from lodger.states.driver_loaded import DriverLoaded
from lodger.states.neighbour_resumed import NeighbourResumed
from lodger.states.only_driver_changes import OnlyDriverChanges, conflicts_fact
from lodger.states.packages_cached import PackagesCached
from lodger.states.upgrade_possible import UpgradePossible
from tests.unit.readings import HOST, base, container, driver, in_container, process, program, readings

OLD, NEW = "545.23.06", "580.126.09"
GOAL = DriverGoal(HOST, NEW, 2, {Owner("program", "aigc-creator"): 1024, Owner("compose", "captioning"): 0})
NAMES = packages.stack(NEW)
CONFLICTS, SIMULATION = conflicts_fact(NEW), packages.simulation_fact(NEW)


def stack(version: str, *, held: bool = True) -> dict[str, Package]:
    names = packages.stack(version)
    return {name: Package(name, "hi" if held else "ii", f"{version}-0ubuntu1", held) for name in names}


def host(version: str = OLD, **values: Any) -> dict[Fact[Any], Any]:
    """A host with driver ``version`` in all its parts, that has all an upgrade needs."""
    return {
        **base(**values),
        facts.DRIVER: driver(0, 0, loaded=version),
        facts.LEDGER: "",
        DPKG: Dpkg(stack(version), "", ""),
        KERNEL: Kernel("6.8.0", True, (version,), {}),
        packages.candidates_fact(NEW): dict.fromkeys(NAMES, f"{NEW}-0ubuntu1"),
        CACHED: {},
        SIMULATION: Simulation((), ""),
        facts.disk_fact("/var/lib/lodger"): facts.Disk(2**40, True),
        CONFLICTS: (),
    }


def at(version: str = OLD, **values: Any) -> Facts:
    """The facts of such a host; a fact by its name in ``values`` replaces the default."""
    named: dict[str, Fact[Any]] = {
        "dpkg": DPKG,
        "kernel": KERNEL,
        "conflicts": CONFLICTS,
        "cached": CACHED,
        "simulation": SIMULATION,
        "ledger": facts.LEDGER,
    }
    changed = {fact: values.pop(name) for name, fact in named.items() if name in values}
    return readings({**host(version, **values), **changed})


def test_the_goal_needs_module_library_gpus_packages_and_holds() -> None:
    assert GOAL.reached(at(NEW))
    assert GOAL.loaded(at(OLD)) == f"the kernel has {OLD}, not {NEW}"
    free = at(NEW, dpkg=Dpkg(stack(NEW, held=False), "", ""))
    assert "is not held" in GOAL.held(free)
    assert GOAL.reached(free), "nobody has to leave the GPUs for a hold"
    assert "not at peace" in GOAL.installed(at(NEW, dpkg=Dpkg(stack(NEW), "half installed", "")))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"kernel": Kernel("6.8.0", False, (OLD,), {})}, "the headers of the running kernel 6.8.0 are missing"),
        ({"dpkg": Dpkg(stack(OLD), "nvidia-utils-545 is half installed", "")}, "dpkg is not at peace"),
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
    what = "gpu-tools owns /usr/bin/nvidia-smi, which nvidia-utils-580 brings too"
    read = at(conflicts=found)
    assert OnlyDriverChanges(GOAL).missing(read) == what
    for state in (OnlyDriverChanges(GOAL), DriverInstalled(GOAL)):
        assert [one.what for one in state.blockers(read)] == [what]
    assert OnlyDriverChanges(GOAL).blockers(at(NEW, conflicts=found)) == []


SAID = """Reading package lists...
The following packages will be REMOVED:
  cuda-drivers-545 cuda-runtime-12-3 libnvidia-compute-545
Remv cuda-runtime-12-3 [12.3.2-1]
Remv cuda-drivers-545 [545.23.06-1] [libnvidia-compute-545:amd64 ]
Inst libnvidia-compute-580 (580.126.09-0ubuntu1 NVIDIA:stable [amd64]) []
Inst nvidia-modprobe [545.23.06-1] (580.126.09-1 NVIDIA:stable [amd64])
Inst libdrm2 [2.4.1-1] (2.4.9-1 Ubuntu:22.04/jammy-updates [amd64])
Inst libtirpc3 (1.3 Ubuntu:22.04/jammy [amd64])
Conf libnvidia-compute-580 (580.126.09-0ubuntu1 NVIDIA:stable [amd64])
"""


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
        "apt would remove cuda-runtime-12-3, which is not of the driver",
        "apt would replace libdrm2, which is not of the driver",
        "apt would add libtirpc3, which is not of the driver",
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


def test_what_apt_cannot_install_is_said_in_its_own_words_but_for_what_a_run_of_ours_left() -> None:
    unmet = Simulation((), "E: held broken packages")
    (blocker,) = UpgradePossible(GOAL).blockers(at(simulation=unmet))
    assert (blocker.what, blocker.cause) == (f"apt cannot install driver {NEW}", "E: held broken packages")
    half = at(simulation=unmet, dpkg=Dpkg(stack(OLD), "half installed", ""), ledger="{}")
    assert UpgradePossible(GOAL).blockers(half) == []


def cached(*found: Package | tuple[str, str]) -> dict[tuple[str, str], str]:
    """The cache with these packages in it."""
    keys = [one if isinstance(one, tuple) else (one.name, one.version) for one in found]
    return {key: f"{packages.CACHE}/{key[0]}_{key[1]}_amd64.deb" for key in keys}


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
    goal = DriverGoal(HOST, "545.29.06", 2, {})
    offered = [(name, "545.29.06-0ubuntu1") for name in packages.stack(OLD)]
    facts_of = {
        **host(OLD),
        packages.candidates_fact(goal.version): dict(offered),
        packages.simulation_fact(goal.version): Simulation((), ""),
        conflicts_fact(goal.version): (),
    }
    old, _ = PackagesCached(goal).act(readings(facts_of))
    assert f"nvidia-dkms-545={OLD}-0ubuntu1" in old.script
    assert "the way back" in PackagesCached(goal).missing(readings({**facts_of, CACHED: cached(*offered)}))
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
    with pytest.raises(StateFailed, match=r"the way back, \S+ 545.23.06-0ubuntu1, is not in"):
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
    assert "the way back" in PackagesCached(GOAL).missing(read.replaced(CACHED, ""))


def test_modules_go_users_first_and_nvidia_last() -> None:
    loaded = {
        "nvidia": (6, ("nvidia_uvm", "nvidia_modeset", "gdrdrv")),
        "nvidia_uvm": (0, ()),
        "gdrdrv": (0, ()),
        "nvidia_modeset": (1, ("nvidia_drm",)),
        "nvidia_drm": (0, ()),
        "ext4": (1, ()),
    }
    order = unload_order(loaded)
    assert order[-1] == "nvidia"
    assert set(order) == loaded.keys() - {"ext4"}
    assert order.index("nvidia_drm") < order.index("nvidia_modeset")


def test_a_paused_neighbour_is_back_once_it_has_its_gpu_open_again() -> None:
    ran = {"programs": "aigc-creator RUNNING   pid 439, uptime 1:00:00\n", "pid": "@pid 439\nroot\n\n/\n/dev/nvidia0 \nserve\n"}
    before = Facts(
        {
            **{fact.name: (0, "") for fact in facts.FOOTPRINT},
            facts.PROGRAMS.name: (0, ran["programs"]),
            facts.PROCESSES.name: (0, ran["pid"]),
        }
    )
    ledger = f'{{"stops": ["program aigc-creator"], "before": {json.dumps(before.dump())}}}'
    state = NeighbourResumed("program", "aigc-creator")

    def now(*processes: facts.Process, up: bool = True) -> str:
        found = program("aigc-creator", 700, "RUNNING" if up else "STOPPED")
        return state.missing(readings({**base(programs=[found], processes=processes), facts.LEDGER: ledger}))

    assert now(up=False) == "aigc-creator is not running again"
    assert now() == "program aigc-creator has no GPU open again"
    assert now(process(700, devices=("/dev/nvidiactl",))) == "program aigc-creator has no GPU open again"
    assert now(process(700, devices=("/dev/nvidia0",))) == ""


MODULES = {
    "nvidia": (2, ("nvidia_uvm", "nvidia_modeset", "gdrdrv")),
    "nvidia_uvm": (0, ()),
    "gdrdrv": (0, ()),
    "nvidia_modeset": (1, ("nvidia_drm",)),
    "nvidia_drm": (0, ()),
}


def kernel(*loaded: str, built: str = OLD) -> Kernel:
    """The kernel with these modules, or all; nvidia counts as used by whoever is there."""
    names = loaded or tuple(MODULES)
    return Kernel("6.8.0", True, (built,), {name: (0, tuple(u for u in MODULES[name][1] if u in names)) for name in names})


def ledger(before: Facts) -> dict[Fact[Any], Any]:
    """The fact of a run that began at ``before``, whose values have no text: what it says of the kernel is written here."""
    lsmod = "".join(f"{name} 1 {count} {','.join(users)}\n" for name, (count, users) in before[KERNEL].modules.items())
    text = f"@release\n6.8.0\n@headers\nyes\n@dkms\n@modules\nModule Size Used by\n{lsmod}"
    return {facts.LEDGER: json.dumps({"stops": [], "before": Facts({KERNEL.name: (0, text)}).dump()})}


def test_all_modules_come_back_on_the_new_driver_other_peoples_too() -> None:
    (load,) = DriverLoaded(GOAL).act(at(OLD, kernel=kernel()))
    assert "modprobe nvidia_uvm\nmodprobe -a nvidia " in load.script
    assert "gdrdrv" in load.script.partition("modprobe -a")[2]
    # tried again after a lost connection, with all of it unloaded: what was there is in the ledger
    again = readings({**host(OLD), KERNEL: Kernel("6.8.0", True, (), {}), **ledger(at(OLD, kernel=kernel()))})
    assert "gdrdrv" in DriverLoaded(GOAL).act(again)[0].script


def test_modules_that_an_unloading_took_away_before_it_failed_are_loaded_again() -> None:
    before = at(OLD, kernel=kernel())
    back = at(OLD, kernel=kernel("nvidia"))
    upgraded = at(OLD, kernel=kernel("nvidia"), dpkg=Dpkg(stack(NEW), "", ""), cached=cached(*stack(OLD).values()))
    for now in (upgraded, back):  # before the packages are put back, and where that was done and then the power went
        undo = DriverInstalled(GOAL).undo(before, now)
        assert isinstance(undo, list)
        assert "\nmodprobe -a nvidia " in undo[0].script
    assert DriverInstalled(GOAL).undone(before, back) == "not loaded again: nvidia_uvm, nvidia_drm, nvidia_modeset, gdrdrv"
    assert DriverInstalled(GOAL).undone(before, before) == ""
    assert isinstance(DriverInstalled(GOAL).undo(before, before), NoUndo)


def test_where_the_new_packages_were_there_before_the_modules_come_back_all_the_same() -> None:
    before, now = (at(OLD, kernel=kernel(*names), dpkg=Dpkg(stack(NEW), "", "")) for names in ((), ("nvidia",)))
    undo = DriverLoaded(GOAL).undo(before, now)
    assert isinstance(undo, list)
    assert undo[0].script.startswith("modprobe -a nvidia ")
    assert DriverLoaded(GOAL).undone(before, now) == "not loaded again: nvidia_uvm, nvidia_drm, nvidia_modeset, gdrdrv"
    assert isinstance(DriverLoaded(GOAL).undo(before, before), NoUndo)


def test_whoever_keeps_the_modules_is_named() -> None:
    read = at(OLD, kernel=kernel(), processes=[process(9, devices=("/dev/nvidia0",))])
    seen = DriverLoaded(GOAL).evidence(read)
    assert "pid 9 (process 9): /dev/nvidia0" in seen
    assert "module nvidia: used 0 times nvidia_uvm nvidia_modeset gdrdrv" in seen
