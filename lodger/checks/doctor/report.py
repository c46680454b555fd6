"""The result of doctor: findings by severity, as text, as JSON, and as a document that may leave the site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from lodger.checks.doctor.redaction import redacted
from lodger.errors import LodgerError


class DoctorSeverity(StrEnum):
    """How grave: an error makes a deploy or a service fail, a warning costs speed or the next boot, a note explains."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class DoctorFinding:
    """What a check found: one sentence, what was measured, and what to do about it ("" for nothing)."""

    severity: DoctorSeverity
    what: str
    measured: str = ""
    todo: str = ""
    check: str = ""


@dataclass(frozen=True)
class DoctorResult:
    """One host: what every check found, gravest first, or why it could not be examined.

    ``private`` are the words of the host that :func:`document` takes out, by kind; see ``redact``.
    """

    host: str
    findings: Sequence[DoctorFinding] = ()
    error: LodgerError | None = None
    private: Mapping[str, Sequence[str]] = field(default_factory=dict)
    round_trips: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 without an error among the findings, 1 with one, else that of the failure that ended the examination."""
        if self.error is not None:
            return self.error.exit_code
        return int(any(one.severity is DoctorSeverity.ERROR for one in self.findings))

    @property
    def counted(self) -> str:
        """How many findings there are of each severity: ``1 error, 2 warnings, 0 notes, 12 ok``."""
        count = Counter(one.severity for one in self.findings)
        plural = {one: "" if count[one] == 1 or one is DoctorSeverity.OK else "s" for one in DoctorSeverity}
        return ", ".join(f"{count[one]} {one}{plural[one]}" for one in DoctorSeverity)

    def text(self) -> str:
        """Return what an operator reads: every finding but those that are ok, and their counts."""
        if self.error is not None:
            return f"{self.host}: not examined"
        lines: list[str] = []
        for one in self.findings:
            if one.severity is not DoctorSeverity.OK:
                lines.append(f"  {one.severity:<8} {one.check:<11} {one.what}")
                lines += [f"{'':<23}{label} {said}" for label, said in (("measured:", one.measured), ("do:", one.todo)) if said]
        trips = "1 round trip" if self.round_trips == 1 else f"{self.round_trips} round trips"
        return "\n".join([*lines, f"{self.host}: {self.counted} ({self.seconds:.1f} s, {trips})"])

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the host."""
        outcome = {0: "satisfied", 3: "refused"}.get(self.exit_code, "failed")
        data: dict[str, Any] = {
            "host": self.host,
            "task": "doctor",
            "outcome": outcome,
            "findings": [{**one.__dict__, "severity": str(one.severity)} for one in self.findings],
            "round_trips": self.round_trips,
            "seconds": round(self.seconds, 2),
        }
        if self.error is not None:
            data["error"] = {"what": self.error.what, "cause": self.error.cause, "hint": self.error.hint}
        return data


def document(hosts: Sequence[DoctorResult], revision: str) -> str:
    """Return every finding, those that are ok too, as Markdown, redacted for people outside the site."""
    lines = [f"# Examination of {len(hosts)} host{'s' * (len(hosts) != 1)}", "", f"Lodger at revision {revision[:12]}.", ""]
    for host in hosts:
        lines += [f"## {host.host}", ""]
        if host.error is not None:
            lines += [f"Not examined: {_line(host.error.what)} ({_line(host.error.cause)})", ""]
            continue
        lines += [f"{host.counted}.", "", "| severity | check | found | measured | to do |", "| --- | --- | --- | --- | --- |"]
        for one in host.findings:
            cells = (str(one.severity), one.check, one.what, one.measured, one.todo)
            lines.append(" | ".join(["", *(_line(cell).replace("|", "\\|") for cell in cells), ""]).strip())
        lines.append("")
    private: dict[str, list[str]] = {}
    for host in hosts:
        for kind, words in {"host": [host.host], **host.private}.items():
            private.setdefault(kind, []).extend(words)
    return redacted("\n".join(lines), private)


def write(path: Path, hosts: Sequence[DoctorResult], revision: str) -> None:
    """Write :func:`document` to ``path``; raise LodgerError when that fails."""
    try:
        path.write_text(document(hosts, revision), encoding="utf-8")
    except OSError as error:
        raise LodgerError(f"the report cannot be written to {path}", cause=error.strerror or str(error)) from error


def _line(text: str) -> str:
    return " ".join(text.split())
