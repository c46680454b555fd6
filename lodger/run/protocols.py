"""What a run needs of the connection, the journal, the terminal and the witnesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lodger.host.command import Command, Result, Transport
from lodger.run.outcome import StateResult


class Connection(Transport, Protocol):
    """A transport that can be opened again."""

    round_trips: int
    cancelled: Callable[[], bool]

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        """Run ``command``; see Transport."""
        ...

    def reconnect(self) -> None:
        """Connect again."""
        ...


class RunLog(Protocol):
    """The journal of a run (``journal.Journal``)."""

    run: str

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; it is on disk when this returns."""
        ...

    def intent(self, state: str, command: object) -> None:
        """Append the command that is about to run."""
        ...

    def result(self, state: str, result: Result) -> None:
        """Append how a command ended."""
        ...

    def content(self) -> bytes:
        """Return everything so far."""
        ...


class Reporter(Protocol):
    """What shows the operator the progress of a run."""

    def progress(self, host: str, text: str) -> None:
        """Show where the run is; the next call replaces it."""
        ...

    def state(self, host: str, result: StateResult) -> None:
        """Show the result of a state."""
        ...

    def note(self, host: str, text: str) -> None:
        """Show a line that stays."""
        ...


Witnesses = Callable[[Sequence[str], Transport, str], list[str]]
"""Runs testinfra files over the open connection and returns what disagrees, one line each.

The last argument names the service or neighbour to look at, "" for all of the host."""
