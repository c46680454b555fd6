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
    """Why a state cannot be established. ``awaits`` names what an earlier state provides; "" makes it final."""

    what: str
    cause: str = ""
    hint: str = ""
    awaits: str = ""


@dataclass(frozen=True)
class Check:
    """An action that is no command: ``run`` looks at what is served through the open connection.

    It raises StateFailed when the check fails, and returns a line for the journal when it passes.
    """

    title: str
    run: Callable[[Transport, Callable[[str], None]], str]

    def __str__(self) -> str:
        return f"check: {self.title}"


Action = Command | Check


@dataclass(frozen=True)
class NoUndo:
    """Nothing is put back, and why that is well."""

    reason: str


class State:
    """One condition. Subclasses say how it is read (``facts``), decided (``missing``) and established (``act``).

    ``name`` is unique within a run. ``deadline`` is how long (s) the condition may take to come true after the last
    action; until then the facts are read again. ``stops`` names what the actions take down, for the ledger. ``only_waits``
    says that it has no actions and that its deadline, before anything was begun, is a refusal; ``reboots`` that the host is
    meant to boot while it is established.
    """

    name: str
    facts: tuple[Fact[Any], ...] = ()
    provides: frozenset[str] = frozenset()
    deadline: float = 0.0
    only_waits: bool = False
    reboots: bool = False

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return why this state could not be established now."""
        del read
        return []

    def missing(self, read: Facts) -> str:
        """Return what keeps the condition from holding, in words; "" when it holds."""
        raise NotImplementedError

    def act(self, read: Facts) -> Sequence[Action]:
        """Return what establishes the condition from where ``read`` says the host is; nothing, where it can only be found."""
        del read
        return []

    def hopeless(self, read: Facts) -> str:
        """Return why waiting any longer is no use, "" while there is hope."""
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
        """Return lines that whoever reads plan or report has to know of what establishing it means."""
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
        """Return what leads from ``now`` back to how ``before`` had it."""
        del before, now
        return NoUndo("it only looks")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what still differs from ``before`` after the undo, "" when it is put back."""
        del before, now
        return ""

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why it is no use to wait any longer for the undo to hold, "" while there is hope."""
        del before, now
        return ""

    undo_deadline: float = 0.0
    undo_facts: tuple[Fact[Any], ...] = ()
    """What an undo reads besides ``facts``."""


@dataclass(frozen=True)
class Step:
    """A state within a runbook: where it stands there, and the testinfra files that confirm it.

    ``item`` is the service or neighbour it stands for, "" for the host. ``pools``: within each of them only one host at a time
    restarts something; they are held from the first such state that acts to the one with ``frees_pools``. ``line`` is where
    its block stands in the runbook.
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
