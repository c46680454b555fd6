"""The driver upgrade: who is in its way, what is removed by force, in which order modules go."""

from __future__ import annotations

import json
from typing import Any

from lodger.host import facts, nvidia
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.packages import KERNEL, Dpkg, Kernel, unload_order
from lodger.states.base import NoUndo
from lodger.states.driver_installed import DriverInstalled
from lodger.states.driver_loaded import DriverLoaded
from lodger.states.neighbour_resumed import NeighbourResumed
from tests.unit.readings import base, process, program, readings
from tests.unit.states.support_driver import GOAL, NEW, OLD, at, cached, host, stack


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
    assert now() == "program aigc-creator has not opened a GPU again"
    assert now(process(700, devices=("/dev/nvidiactl",))) == "program aigc-creator has not opened a GPU again"
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


def test_every_daemon_of_the_driver_is_stopped_before_its_modules_go() -> None:
    script = DriverLoaded(GOAL).act(at(OLD, kernel=kernel()))[0].script
    stop = next(line for line in script.splitlines() if line.startswith("systemctl stop "))
    assert [word for word in stop.split() if word.endswith(".service")] == list(nvidia.DAEMON_UNITS)
    assert script.index(stop) < script.index("rmmod ")


def test_whoever_keeps_the_modules_is_named() -> None:
    read = at(OLD, kernel=kernel(), processes=[process(9, devices=("/dev/nvidia0",))])
    seen = DriverLoaded(GOAL).evidence(read)
    assert "pid 9 (process 9): /dev/nvidia0" in seen
    assert "module nvidia: used 0 times nvidia_uvm nvidia_modeset gdrdrv" in seen
