"""Nobody has a GPU open."""

from __future__ import annotations

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.states.base import Blocker, State
from lodger.states.driver_goal import DriverGoal
from lodger.states.registry import state
from lodger.states.target import Target


@state("gpus_released")
class GpusReleased(State):
    """Nobody has a GPU open, or the goal is reached: only then can the module be unloaded."""

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "gpus_released"
        self._goal = goal
        self.facts = (*goal.reads, *facts.FOOTPRINT)
        self.deadline = 120.0

    @classmethod
    def of(cls, target: Target, item: None) -> GpusReleased:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def missing(self, read: Facts) -> str:
        """Return who still has a GPU open."""
        if self._goal.reached(read):
            return ""
        return next((f"pid {process.pid} ({owner}) still has a GPU open" for process, owner in self._goal.holders(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return processes that are neither ours nor in the inventory: they may have started after the first look."""
        return self._goal.strangers(read) if self.missing(read) else []

    def act(self, read: Facts) -> list[Command]:
        """Return nothing: the owners were stopped by the states before, and their processes only have to end."""
        del read
        return []
