"""The people behind a neighbour were warned before it is paused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.host import facts, paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Fact, Facts
from lodger.inventory import Neighbour
from lodger.states.base import NoUndo, State
from lodger.states.registry import state
from lodger.states.stopped import Reached, stopped_by_run
from lodger.states.target import Target


class Told(State):
    """What the messages before and after a pause share: the command, and the record that says when people were warned.

    The record holds the host's clock (s since 1970) at the end of the warning. It is removed once people are told that the
    pause is over, even after a failed run.
    """

    def __init__(self, name: str, command: str, minutes: int) -> None:
        self._neighbour, self._command, self._minutes = name, command, minutes
        self._path = f"{paths.VAR}/warned/{name}"
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED,)

    def _told(self, read: Facts) -> float | None:
        """Return when they were warned of a pause whose end they do not know yet, None when they were not."""
        record = read[facts.DEPLOYED].files.get(self._path)
        if record is None:
            return None
        try:
            return float(record.content)
        except ValueError:
            return 0.0  # a record of an older Lodger, or a broken one: warned, a long time ago

    def _tell_after(self) -> list[Command]:
        """Return the commands that tell them the pause is over, and remove the record. A failing message fails nothing."""
        told = f"timeout 100 {telling('after', 0, self._command)}"
        return [
            Command(
                told, why=f"tell the people behind {self._neighbour} that its pause is over", timeout=120, ok=tuple(range(256))
            ),
            run("rm", "-f", self._path, why="remove the record of the warning"),
        ]


def telling(when: str, minutes: int, command: str) -> str:
    """Return sh that runs the command that sends the message."""
    return quote(["env", f"WHEN={when}", f"MINUTES={minutes}", "sh", "-c", command])


@state("neighbour_warned", each="warned neighbour")
class NeighbourWarned(Told):
    """The people behind a neighbour were warned ``minutes`` before its pause, by this run or the one it continues."""

    def __init__(self, name: str, command: str, minutes: int, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take the neighbour's name, the command that warns (run by sh with WHEN and MINUTES set), and how long before."""
        super().__init__(name, command, minutes)
        self.name = f"neighbour_warned({name})"
        self._reached = reached
        self.facts = (facts.LEDGER, facts.MACHINE, facts.DEPLOYED, *reads)

    @classmethod
    def of(cls, target: Target, item: Neighbour) -> NeighbourWarned:
        """Return the state for ``item``."""
        assert item.warn is not None  # noqa: S101  what its block is repeated for
        return cls(item.name, item.warn.command, item.warn.minutes, target.goal.reached, target.goal.reads)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: nobody was warned since this run began; an earlier warning was for another pause."""
        _, before = stopped_by_run(read)
        told = self._told(read)
        if self._reached(read) or (before is not None and told is not None and told >= before[facts.MACHINE].clock):
            return ""
        return f"the people behind {self._neighbour} are not warned yet; its pause begins {self._minutes} minutes later"

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that warn, wait, and record the warning."""
        del read
        path, folder = quote([self._path]), quote([self._path.rpartition("/")[0]])
        note = f"mkdir -p {folder} && date +%s > {path}.new && sync {path}.new && mv -f {path}.new {path}"
        return [
            Command(
                telling("before", self._minutes, self._command), why=f"warn the people behind {self._neighbour}", timeout=120
            ),
            Command(
                f"sleep {self._minutes * 60}",
                why=f"wait {self._minutes} minutes after the warning",
                sudo=False,
                timeout=self._minutes * 60 + 60,
            ),
            Command(note, why="record the warning"),
        ]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that tell them the pause is over: the undo has started everything again."""
        del before
        return self._tell_after() if self._told(now) is not None else NoUndo("nobody was warned")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: they do not know that the pause is over."""
        del before
        return "" if self._told(now) is None else f"the people behind {self._neighbour} do not know that its pause is over"
