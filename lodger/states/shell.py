"""A state that an operator writes in a runbook, without Python: a check, a command, and an undo."""

from __future__ import annotations

from lodger.host.command import Command, quote
from lodger.host.facts.base import Fact, Facts
from lodger.states.base import NoUndo, State


class Shell(State):
    """``check`` ends with 0 when the state holds; ``run`` establishes it, ``undo`` undoes it. All run as root, with sh."""

    def __init__(self, name: str, check: str, run: str, undo: str = "", timeout: float = 600.0) -> None:
        """Take the state's name, its three scripts, and how long ``run`` or ``undo`` may take (s)."""
        self.name = name
        self._run, self._undo, self._timeout = run, undo, timeout
        self._shown = check.strip() if len(check.strip().splitlines()) == 1 else f"the check of {name}"
        snippet = f"if sh -c {quote([check])} >/dev/null 2>&1; then echo yes; else echo no; fi"
        # The name of a fact must be one line.
        self._fact = Fact(f"shell {' '.join(check.split())}", snippet, lambda text: text.strip() == "yes")
        self.facts = (self._fact,)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: the check fails."""
        return "" if read[self._fact] else f"`{self._shown}` fails"

    def act(self, read: Facts) -> list[Command]:
        """Return ``run``."""
        del read
        return [Command(self._run, why=f"establish {self.name}", timeout=self._timeout)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return ``undo``, where the runbook has one and the state did not hold before."""
        del now
        if before[self._fact]:
            return NoUndo("it held before")
        return (
            [Command(self._undo, why=f"undo {self.name}", timeout=self._timeout)]
            if self._undo
            else NoUndo("the runbook has no undo")
        )

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: the check still succeeds."""
        return f"`{self._shown}` still succeeds" if now[self._fact] and not before[self._fact] else ""
