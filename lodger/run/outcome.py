"""The result of a state, and of a run on one host."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from lodger.errors import LodgerError
from lodger.run.footprint import FootprintChange


class Status(enum.StrEnum):
    """The result of a state."""

    SATISFIED = "satisfied"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    UNDONE = "undone"
    UNDO_FAILED = "undo failed"

    @staticmethod
    def of(error: LodgerError) -> Status:
        """Return the status of a state that ended with ``error``."""
        return Status.REFUSED if error.refusal else Status.FAILED


@dataclass
class StateResult:
    """One line of the report."""

    name: str
    status: Status
    seconds: float = 0.0
    detail: str = ""


@dataclass
class RunResult:
    """The result of a run on one host. ``error`` is the failure that ended it; ``news`` is what others changed meanwhile.

    ``remarks`` are the plan's. ``unfinished``: it failed, and an earlier run is still neither finished nor put back.
    ``found`` is what a task that only looks says when nothing is wrong.
    """

    host: str
    task: str
    status: Status = Status.SATISFIED
    states: list[StateResult] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    losses: list[FootprintChange] = field(default_factory=list)
    news: list[FootprintChange] = field(default_factory=list)
    error: LodgerError | None = None
    evidence: str = ""
    round_trips: int = 0
    seconds: float = 0.0
    journal: str = ""
    unfinished: bool = False
    remarks: tuple[str, ...] = ()
    found: str = ""

    @property
    def exit_code(self) -> int:
        """Return the exit code of this outcome, as in the table of README-ops.md."""
        if self.status in {Status.SATISFIED, Status.DONE}:
            return 1 if self.losses else 0
        if self.status is Status.UNDO_FAILED:
            return 4
        if self.status is Status.REFUSED:
            return self.error.exit_code if self.error is not None else 3
        return 1
