"""A planned reboot: the host runs in another boot than when the run began."""

from __future__ import annotations

from typing import Any

from lodger.host import facts, paths
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.states.base import NoUndo, State
from lodger.states.registry import state
from lodger.states.stopped import stopped_by_run
from lodger.states.target import Target


class RebootGoal:
    """Another boot than the one in which this run began, which the ledger names."""

    reads: tuple[Fact[Any], ...] = (facts.LEDGER, facts.MACHINE, facts.SYSTEM)

    def reached(self, read: Facts) -> bool:
        """Whether the boot id differs from the one before the first change."""
        _, before = stopped_by_run(read)
        return before is not None and before[facts.MACHINE].boot_id != read[facts.MACHINE].boot_id


@state("rebooted")
class Rebooted(State):
    """The host has booted since this run began, and systemd has finished starting."""

    def __init__(self) -> None:
        """Take nothing: the boot to compare with is in the ledger."""
        self.name = "rebooted"
        self._goal = RebootGoal()
        self.facts = self._goal.reads
        self.deadline = 600.0
        self.reboots = True

    @classmethod
    def of(cls, target: Target, item: None) -> Rebooted:
        """Return the state for the host."""
        del target, item
        return cls()

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: it is still the same boot, or systemd is still starting."""
        if not self._goal.reached(read):
            return "the host has not rebooted since this run began"
        return f"systemd is {read[facts.SYSTEM]}" if read[facts.SYSTEM] in {"starting", "initializing"} else ""

    def act(self, read: Facts) -> list[Command]:
        """Return the reboot, delayed so that the command can end first; nothing while the new boot is starting."""
        if self._goal.reached(read):
            return []
        later = f"systemd-run --quiet --on-active=1 --unit={paths.STEP}reboot systemctl reboot && sleep 20"
        return [Command(later, why="reboot", timeout=120)]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it."""
        del before, now
        return NoUndo("a reboot cannot be undone")
