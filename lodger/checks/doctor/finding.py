"""How a check says what it found."""

from __future__ import annotations

from lodger.checks.doctor.report import DoctorFinding, DoctorSeverity


def error_finding(what: str, measured: str, todo: str) -> DoctorFinding:
    """Return a finding that makes a deploy or a service fail."""
    return DoctorFinding(DoctorSeverity.ERROR, what, measured, todo)


def warning_finding(what: str, measured: str, todo: str) -> DoctorFinding:
    """Return a finding that costs speed, or the next boot."""
    return DoctorFinding(DoctorSeverity.WARNING, what, measured, todo)


def note_finding(what: str, measured: str, todo: str) -> DoctorFinding:
    """Return a finding that explains."""
    return DoctorFinding(DoctorSeverity.NOTE, what, measured, todo)


def ok_finding(what: str, measured: str = "") -> DoctorFinding:
    """Return a finding that needs no action."""
    return DoctorFinding(DoctorSeverity.OK, what, measured)


def span(seconds: float) -> str:
    """Return a time in words: days, or hours."""
    return f"{seconds / 86400:.1f} days" if seconds > 86400 else f"{seconds / 3600:.1f} hours"


def gib(size: float) -> str:
    """Return bytes in words."""
    return f"{size / 2**30:.1f} GiB"
