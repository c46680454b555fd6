"""What a run would do on one host: the difference, the states, and the commands that they would run now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lodger.errors import LodgerError
from lodger.run.outcome import Status


@dataclass
class DryRun:
    """The result of a dry run on one host; ``diff`` is None when no files are compared.

    ``states`` has name, what is missing, and commands of each; ``document`` is the runbook with them, when that is shown.
    """

    host: str
    task: str
    diff: str | None = None
    states: list[tuple[str, str, list[str]]] = field(default_factory=list)
    document: str = ""
    remarks: tuple[str, ...] = ()
    error: LodgerError | None = None
    seconds: float = 0.0
    round_trips: int = 0

    @property
    def exit_code(self) -> int:
        """Return 0, or the exit code of the error that ended it."""
        return self.error.exit_code if self.error is not None else 0

    def text(self) -> str:
        """Return the difference, the states with the commands they would run, and the error that ended it, if any."""
        if self.document:
            return "\n".join([self.document, *self.remarks, *self._verdict()])
        lines = [f"{self.host}: {self.task}"]
        lines += [] if self.diff is None else [self.diff.rstrip() or "no file differs"]
        for name, missing, commands in self.states:
            lines.append(f"  {'would do ' if missing else 'satisfied'}  {name}{f': {missing}' if missing else ''}")
            lines += [f"               {command}" for command in commands]
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks), *self._verdict()])

    def _verdict(self) -> list[str]:
        if self.error is not None:
            return [f"{Status.of(self.error)}: {self.error}", *([f"  hint: {self.error.hint}"] if self.error.hint else [])]
        return [] if any(missing for _, missing, _ in self.states) else [f"{self.host}: nothing to change"]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of one host."""
        due = "would change" if any(missing for _, missing, _ in self.states) else "satisfied"
        data: dict[str, Any] = {
            "host": self.host,
            "task": self.task,
            "outcome": str(Status.of(self.error)) if self.error is not None else due,
            "changed": [],
            "states": [
                {"name": n, "outcome": "would do" if m else "satisfied", "seconds": 0.0, "missing": m}
                for n, m, _ in self.states
            ],
            "round_trips": self.round_trips,
            "seconds": round(self.seconds, 2),
            "journal": "",
            "diff": self.diff,
        }
        if self.remarks:
            data["remarks"] = list(self.remarks)
        if self.error is not None:
            data["error"] = {"what": self.error.what, "cause": self.error.cause, "hint": self.error.hint}
        return data
