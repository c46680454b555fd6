"""What is known to break, checked against the inventory with no host at all.

A rule is one small function, registered with its number, its gravity, and inventories in which it must and must not fire.
Those in modules beside this one hold for every engine, those of one engine stand with it. :func:`check` asks some of them about
what they see. A rule that is wrong for a site is silenced where its finding is by a comment on that line, or above it:
``# allow L021: the network is private``. It covers everything below that key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lodger.errors import InventoryError
from lodger.inventory import Fleet
from lodger.lint import images, sites, workers
from lodger.lint.location import Location
from lodger.lint.rule import RULES, Hit, Rule, Rules, Severity
from lodger.lint.view import ServedWorker, View

__all__ = ["RULES", "LintFinding", "Rule", "Rules", "ServedWorker", "Severity", "View", "check", "errors", "ordered", "refuse"]

MANUAL = "README-ops.md"
_ALLOW = re.compile(r"#\s*allow\s+(L\d{3}):\s*([^\s#][^#]*)")
_MODULES = (images, workers, sites)  # importing them registered their rules


@dataclass(frozen=True)
class LintFinding:
    """One thing that will break, or may: the rule, where it stands, why, and what to write instead."""

    rule: str
    severity: Severity
    file: str
    line: int
    reason: str
    instead: str

    @property
    def link(self) -> str:
        """The section of the manual about the rule."""
        return f"{MANUAL}#{self.rule.lower()}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity} {self.rule}: {self.reason}; {self.instead} ({self.link})"

    def as_json(self) -> dict[str, str | int]:
        """Return the finding as a JSON object."""
        return {**self.__dict__, "severity": str(self.severity), "link": self.link}


def check(view: View, rules: Mapping[str, Rule]) -> set[LintFinding]:
    """Return what each of ``rules`` finds in ``view``."""
    return {_finding(view.fleet, rule, hit) for rule in rules.values() for hit in rule.find(view)}


def ordered(findings: Iterable[LintFinding]) -> list[LintFinding]:
    """Return findings, gravest first."""
    return sorted(findings, key=lambda one: (one.severity.rank, one.file, one.line, one.rule, one.reason))


def errors(findings: Iterable[LintFinding]) -> list[LintFinding]:
    """Return those that must be mended before anything is deployed."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def refuse(findings: Iterable[LintFinding]) -> None:
    """Raise InventoryError when there are errors."""
    if grave := errors(findings):
        lines = [str(finding) for finding in grave]
        hint = f"mend it, or say `# allow {grave[0].rule}: REASON` in a comment on that line"
        if len(lines) == 1:
            raise InventoryError(lines[0], hint=hint)
        raise InventoryError("\n".join([f"{len(lines)} things in the inventory are known to break", *lines]), hint=hint)


def _finding(fleet: Fleet, rule: Rule, hit: Hit) -> LintFinding:
    path, line, reason = hit.place.file(fleet), hit.place.line(fleet), hit.reason
    severity = rule.severity
    if severity is not Severity.NOTE and (why := _allowed(fleet, rule.number, hit.place)):
        severity, reason = Severity.NOTE, f"{reason} (allowed: {why})"
    return LintFinding(rule.number, severity, str(path), line, reason, hit.instead)


def _allowed(fleet: Fleet, number: str, place: Location) -> str:
    """Return the reason of a comment that allows rule ``number`` at ``place`` or at anything around it, "" for none."""
    try:
        lines = Path(place.file(fleet)).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for at in {place.line(fleet), *place.around(fleet)}:
        first = at - 1
        while first > 0 and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        for line in lines[first:at]:
            if (found := _ALLOW.search(line)) and found[1] == number:
                return found[2].strip()
    return ""
