"""What an operator reads: progress on standard error while a run goes on, and its result."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from lodger.errors import LodgerError

_QUIET = 5.0  # seconds between progress lines where they can not replace each other
_COLOURS = {"done": "32", "satisfied": "2", "failed": "31", "refused": "33", "undone": "36", "undo failed": "1;31"}


class Line(Protocol):
    """What became of a state, as a line of a run shows it."""

    name: str
    seconds: float
    detail: str

    @property
    def status(self) -> str:
        """One word."""
        ...


class Terminal:
    """Tells on standard error. On a terminal a progress line replaces the one before; elsewhere few of them are printed."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._turn = threading.Lock()
        self._last: dict[str, tuple[float, str]] = {}
        self._open = False

    def progress(self, host: str, text: str) -> None:
        """Show where the run on ``host`` is."""
        text = " ".join(text.split())[:160]
        with self._turn:
            moment, before = self._last.get(host, (0.0, ""))
            now = time.monotonic()
            if text == before or (not self._tty and now - moment < _QUIET):
                return
            self._last[host] = (now, text)
            if self._tty:
                sys.stderr.write(f"\r\033[K\033[2m{host}  {text}\033[0m")
                self._open = True
            else:
                sys.stderr.write(f"{host}  ... {text}\n")
            sys.stderr.flush()

    def state(self, host: str, result: Line) -> None:
        """Show what became of a state."""
        status = str(result.status)
        time_taken = f"  {result.seconds:.1f} s" if result.seconds >= 0.05 else ""
        tail = f"  ({result.detail})" if result.detail and status not in {"satisfied", "done"} else ""
        self.note(host, f"{self._colour(status)}  {result.name}{time_taken}{tail}")

    def note(self, host: str, text: str) -> None:
        """Show a line that stays."""
        with self._turn:
            if self._open:
                sys.stderr.write("\r\033[K")
                self._open = False
            sys.stderr.write(f"{host}  {text}\n" if host else f"{text}\n")
            sys.stderr.flush()

    def _colour(self, status: str) -> str:
        padded = f"{status:<11}"
        return f"\033[{_COLOURS[status]}m{padded}\033[0m" if self._tty and status in _COLOURS else padded

    def error(self, error: LodgerError, evidence: str = "") -> None:
        """Show an error: one red sentence, the cause, a hint, and what was seen last (a log, who holds what)."""
        where = ": ".join(part for part in (error.host, error.state) if part)
        first = f"{where}: {error.what}" if where else error.what
        lines = [f"\033[31m{first}\033[0m" if self._tty else first]
        lines += [f"  cause: {error.cause}"] if error.cause else []
        lines += [f"  hint: {error.hint}"] if error.hint else []
        lines += ["  seen last:", *(f"    {line}" for line in evidence.splitlines())] if evidence else []
        self.note("", "\n".join(lines))


def table(rows: Sequence[Sequence[Any]]) -> str:
    """Return ``rows`` as left-aligned columns."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
