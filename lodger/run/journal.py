"""The journal: what one run did on one host, appended line by line, on disk before and after each command.

Each line is JSON and carries the SHA-256 of the line before it, so that a later change shows.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lodger import checkout
from lodger.errors import LodgerError
from lodger.host.command import Result

FIRST = "0" * 64  # the hash before the first line
_SHOWN = 4000  # characters of a command's output that are kept


def journals() -> Path:
    """Return the folder of all journals: LODGER_JOURNAL, else ``journal/`` of the checkout."""
    return Path(os.environ.get("LODGER_JOURNAL") or checkout.ROOT / "journal")


def run_id(runbook: str, host: str, now: datetime.datetime | None = None) -> str:
    """Return the name of a run: UTC time, runbook and host; it sorts by time."""
    moment = now or datetime.datetime.now(datetime.UTC)
    return f"{moment:%Y%m%dT%H%M%S.%f}"[:-3] + f"Z-{runbook}-{host}"


class Journal:
    """The open journal of one run. Lines are flushed to disk before :meth:`write` returns.

    The first line that cannot be written raises LodgerError; those after it are dropped.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.run = run
        self.folder = root / run
        self.folder.mkdir(parents=True, exist_ok=False)
        self.path = self.folder / "events.jsonl"
        self._last = FIRST
        self._number = 0
        self._broken = False
        self._file = self.path.open("ab")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Values must be JSON; a Secret raises TypeError on purpose."""
        line = json.dumps(
            {"n": self._number, "time": _now(), "event": event, **fields, "previous": self._last}, ensure_ascii=False
        ).encode()
        if self._broken:
            return
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._broken = True  # raised once: the undo on the host must still run, without a journal
            raise LodgerError(
                "the journal cannot be written", cause=f"{self.path}: {error.strerror}", hint="make room on this machine"
            ) from error
        self._last = hashlib.sha256(line).hexdigest()
        self._number += 1

    def intent(self, state: str, command: object) -> None:
        """Append the command that is about to run."""
        self.write("command", state=state, command=str(command))

    def result(self, state: str, result: Result) -> None:
        """Append how a command ended, its output cut to a bounded length."""
        self.write(
            "result",
            state=state,
            code=result.code,
            seconds=round(result.seconds, 3),
            stdout=_bounded(result.stdout),
            stderr=_bounded(result.stderr),
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def content(self) -> bytes:
        """Return all lines so far, for the copy on the host."""
        return self.path.read_bytes()


class NoJournal:
    """The journal of a dry run, which writes nothing."""

    run = "dry-run"

    def write(self, event: str, **fields: Any) -> None:
        """Write nothing."""

    def intent(self, state: str, command: object) -> None:
        """Write nothing."""

    def result(self, state: str, result: object) -> None:
        """Write nothing."""

    def content(self) -> bytes:
        """Return nothing."""
        return b""

    def close(self) -> None:
        """Close nothing."""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bounded(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]}\n... {len(text) - _SHOWN} characters left out ...\n{text[-half:]}"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; a last line that was cut off by a crash is left out."""
    for raw in path.read_bytes().split(b"\n"):
        if raw:
            try:
                yield json.loads(raw)
            except ValueError:
                return


def verify(path: Path) -> None:
    """Check the chain of hashes; raise LodgerError naming the first line that does not fit.

    No later line confirms the last one: compare it with the copy on the host.
    """
    previous = FIRST
    lines = path.read_bytes().split(b"\n")
    for number, raw in enumerate(line for line in lines if line):
        try:
            event = json.loads(raw)
        except ValueError as error:
            raise LodgerError(f"line {number + 1} of {path} is not JSON", cause="it was cut off or changed") from error
        if not isinstance(event, dict) or event.get("previous") != previous or event.get("n") != number:
            raise LodgerError(
                f"line {number + 1} of {path} does not follow the line before it", cause="a line was changed or removed"
            )
        previous = hashlib.sha256(raw).hexdigest()
