"""A state: a named condition of a host that can be read, established, and put back.

The same predicate, :meth:`State.missing`, decides whether a state is skipped and whether establishing it worked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lodger.host.command import Command, Transport
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner


@dataclass(frozen=True)
class Blocker:
    """Why a state cannot be established. ``awaits`` names what an earlier state will provide; "" makes it final."""

    what: str
    cause: str = ""
    hint: str = ""
    awaits: str = ""


@dataclass(frozen=True)
class Check:
    """An action that is not a command: ``run`` checks what the host serves, through the open connection.

    It raises StateFailed when the check fails, and returns a line for the journal when it passes.
    """

    title: str
    run: Callable[[Transport, Callable[[str], None]], str]

    def __str__(self) -> str:
        return f"check: {self.title}"


Action = Command | Check


@dataclass(frozen=True)
class NoUndo:
    """Nothing is put back, for this reason."""

    reason: str


class State:
    """One condition. Subclasses say how it is read (``facts``), decided (``missing``) and established (``act``).

    ``name`` is unique within a run. ``deadline`` is how long (s) the condition may take to come true after the last
    action; until then the facts are read again. ``stops`` names what the actions take down, for the ledger. ``only_waits``:
    it has no actions, and passing its deadline before the run changed anything is a refusal. ``reboots``: the host is expected
    to reboot while it is established.
    """

    name: str
    facts: tuple[Fact[Any], ...] = ()
    provides: frozenset[str] = frozenset()
    deadline: float = 0.0
    only_waits: bool = False
    reboots: bool = False

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return what makes it impossible to establish this state now."""
        del read
        return []

    def missing(self, read: Facts) -> str:
        """Return why the condition does not hold, in words; "" when it holds."""
        raise NotImplementedError

    def act(self, read: Facts) -> Sequence[Action]:
        """Return the actions that establish the condition on a host that is as ``read``; none for a state that only looks."""
        del read
        return []

    def hopeless(self, read: Facts) -> str:
        """Return why waiting longer cannot help, "" while the condition may still come true."""
        del read
        return ""

    def progress(self, read: Facts) -> str:
        """Return one line that shows how far the condition has come."""
        return self.missing(read)

    def evidence(self, read: Facts) -> str:
        """Return what an operator should see when this state fails (last log lines, who holds what), "" for nothing."""
        del read
        return ""

    def remarks(self, read: Facts) -> list[str]:
        """Return lines for plan and report about the effects of establishing it."""
        del read
        return []

    def stops(self, read: Facts) -> list[str]:
        """Return the names of services that :meth:`act` takes down, for the ledger."""
        del read
        return []

    def touched(self, read: Facts) -> frozenset[Owner]:
        """Return the foreign owners that the inventory lets this state stop or start."""
        del read
        return frozenset()

    def undo(self, before: Facts, now: Facts) -> Sequence[Command] | NoUndo:
        """Return the commands that bring the host from ``now`` back to ``before``, or why there are none."""
        del before, now
        return NoUndo("it only looks")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what still differs from ``before`` after the undo, "" when nothing does."""
        del before, now
        return ""

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why waiting longer for the undo cannot help, "" while it may still come true."""
        del before, now
        return ""

    undo_deadline: float = 0.0
    undo_facts: tuple[Fact[Any], ...] = ()
    """What an undo reads besides ``facts``."""


@dataclass(frozen=True)
class Step:
    """A state within a runbook: its heading there, and the testinfra files that confirm it.

    ``item`` is the service or neighbour it is for, "" for the host. ``pools``: within each of them only one host at a time
    restarts something; they are held from the first such state that acts to the one with ``frees_pools``. ``line`` is the line
    of its block in the runbook.
    """

    state: State
    heading: str = ""
    witnesses: tuple[str, ...] = ()
    item: str = ""
    pools: tuple[str, ...] = ()
    frees_pools: bool = False
    line: int = 0

    @property
    def group(self) -> tuple[int, str]:
        """The states of one block for one item."""
        return self.line, self.item
