"""The kernel runs the declared driver."""

from __future__ import annotations

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.detached import detached
from lodger.host.facts import packages
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import DPKG, KERNEL
from lodger.states.base import NoUndo, State
from lodger.states.driver_goal import DriverGoal, load_script, modules_gone, unload_script
from lodger.states.registry import state
from lodger.states.stopped import stopped_by_run
from lodger.states.target import Target


@state("driver_loaded")
class DriverLoaded(State):
    """The kernel runs the declared driver, and library and nvidia-smi agree with it."""

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "driver_loaded"
        self._goal = goal
        self.facts = (facts.LEDGER, *goal.reads, KERNEL, *facts.FOOTPRINT)
        self.deadline = 60.0

    @classmethod
    def of(cls, target: Target, item: None) -> DriverLoaded:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def missing(self, read: Facts) -> str:
        """Return how the loaded driver differs from the declared one."""
        return self._goal.loaded(read)

    def act(self, read: Facts) -> list[Command]:
        """Return one detached step: unload the old modules, load the new ones, make device nodes, run nvidia-smi."""
        before = stopped_by_run(read)[1] or read
        script = f"""set -e
{unload_script(read[KERNEL])}
modprobe nvidia
modprobe nvidia_uvm
{load_script(before[KERNEL])}
if command -v nvidia-modprobe >/dev/null; then nvidia-modprobe -c 0 -u || true; fi
nvidia-smi"""
        return [detached("driver-load", script, why=f"load driver {self._goal.version}", timeout=300)]

    def evidence(self, read: Facts) -> str:
        """Return the processes with a GPU open, and the users of the modules."""
        lines = [f"pid {process.pid} ({owner}): {' '.join(process.devices)}" for process, owner in self._goal.holders(read)]
        modules = read[KERNEL].modules
        lines += [
            f"module {name}: used {modules[name][0]} times {' '.join(modules[name][1])}"
            for name in packages.unload_order(modules)
        ]
        return "\n".join(lines)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the command that unloads the new module; the old one is loaded once its packages are back.

        When the new packages were there before this run, nothing is put back: the new module stays loaded.
        """
        if before[DPKG].packages == now[DPKG].packages:
            if not modules_gone(before, now):
                return NoUndo("its packages were there before, and all modules are loaded")
            return [Command(load_script(before[KERNEL]), why="load the modules again", timeout=120)]
        if now[facts.DRIVER].loaded != self._goal.version:
            return NoUndo("the new module is not loaded")
        return [detached("driver-unload", unload_script(now[KERNEL]), why="unload the new module", timeout=120)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: the new module is still loaded, or a module is not loaded again."""
        if before[DPKG].packages == now[DPKG].packages:
            return modules_gone(before, now)
        return "the new module is still loaded" if now[facts.DRIVER].loaded == self._goal.version else ""
