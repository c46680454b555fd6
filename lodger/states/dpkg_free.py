"""Nobody else installs packages."""

from __future__ import annotations

from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.host.facts.packages import DPKG
from lodger.states.base import State
from lodger.states.driver_goal import PATIENCE, DriverGoal
from lodger.states.registry import state
from lodger.states.target import Target


@state("dpkg_free")
class DpkgFree(State):
    """Nobody else installs packages: an unattended upgrade is waited for; when it does not end, the run is refused."""

    def __init__(self, goal: DriverGoal) -> None:
        """Take the goal."""
        self.name = "dpkg_free"
        self._goal = goal
        self.facts = goal.reads
        self.deadline = PATIENCE
        self.only_waits = True

    @classmethod
    def of(cls, target: Target, item: None) -> DpkgFree:
        """Return the state for the host."""
        del item
        return cls(target.driver)

    def missing(self, read: Facts) -> str:
        """Return who holds dpkg's lock."""
        busy = read[DPKG].busy
        return f"dpkg is locked by {busy}" if busy and not self._goal.reached(read) else ""

    def act(self, read: Facts) -> list[Command]:
        """Return nothing: it only waits."""
        del read
        return []
