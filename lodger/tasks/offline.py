"""Verbs that contact no host: render, lint, capacity, pin, and the check of runbooks."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lodger.tasks.options import HOSTS, HOSTS_DIR, JSON, Asked, verb
from lodger.tasks.output import end, finish, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lodger.inventory import Fleet, Host
    from lodger.run.outcome import RunResult

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415


def refuse_what_breaks(fleet: Fleet, hosts: Sequence[Host]) -> None:
    """Raise InventoryError for what is known to fail; print the other findings."""
    from lodger import lint as findings
    from lodger.checks import lint as rules

    found = rules.check(fleet, hosts)
    findings.refuse(found)
    for finding in found:
        print(finding, file=sys.stderr)


@verb(*HOSTS, help={"out": "folder to write into"})
def render(asked: Asked, out: str) -> None:
    """Write the files of each host's release into a folder, with no host contacted."""
    refuse_what_breaks(asked.fleet, asked.hosts)
    finish([_write_release(asked.fleet, one, Path(out) / one.name) for one in asked.hosts], as_json_array=asked.json)


def _write_release(fleet: Fleet, host: Host, folder: Path) -> RunResult:
    """Write the files of a host's release below ``folder``; what differs from what was there counts as changed."""
    from lodger.release import render as releases
    from lodger.run.outcome import RunResult, StateResult, Status

    start = time.monotonic()
    result = RunResult(host.name, "render")
    for file in releases.render(fleet, host).files:
        path = folder / file.path
        if not path.exists() or path.read_text(encoding="utf-8") != file.content:
            result.changed.append(str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content, encoding="utf-8")
        path.chmod(file.mode)
        result.states.append(StateResult(str(path), Status.DONE if str(path) in result.changed else Status.SATISFIED))
    result.status = Status.DONE if result.changed else Status.SATISFIED
    result.seconds = time.monotonic() - start
    return result


@verb(HOSTS_DIR, replace(JSON, help="print a JSON array, one object a finding"))
def lint(asked: Asked) -> None:
    """Show what in the inventory is known to fail, by numbered rules; no host is contacted."""
    from lodger import lint as findings
    from lodger.checks import lint as rules

    found = rules.check(asked.fleet)
    grave = len(findings.errors(found))
    if asked.json:
        print_json([finding.as_json() for finding in found])
    else:
        print("\n".join([*map(str, found), f"{grave} errors, {len(found) - grave} warnings and notes"]))
    end([2] if grave else [])


@verb(
    *HOSTS,
    help={
        "svg": "write the bars to this file",
        "solve": "context or concurrency: show the settings that give the most of it",
        "learn": "WORKER=TOKENS: take the KV cache that a running engine reported as right",
    },
)
def capacity(asked: Asked, svg: str | None = None, solve: str | None = None, learn: str | None = None) -> None:
    """Show where each GPU's memory goes, how much runs at once, and what to change to get more; no host is contacted."""
    from lodger.capacity import report
    from lodger.checks import capacity as worked_out

    if learn:
        print(worked_out.learn(asked.fleet, asked.hosts, learn), file=sys.stderr)
    found = worked_out.of(asked.fleet, asked.hosts, solve)
    if svg:
        report.picture(found, Path(svg))
    if asked.json:
        print_json(report.as_json(found))
    else:
        report.show(found)


@verb(HOSTS_DIR, replace(JSON, help="print the changes as JSON"))
def pin(asked: Asked) -> None:
    """Read the digest of each image from its registry and write it into fleet.yml, comments kept."""
    from lodger.inventory.pin import pin as pin_images

    changes = pin_images(asked.fleet.folder)
    if asked.json:
        print_json([change.__dict__ for change in changes])
    else:
        print("\n".join(str(change) for change in changes) or "every digest is the same as the registry's")


@verb(HOSTS_DIR, replace(JSON, help="print the mistakes as JSON"), name="check")
def runbook_check(asked: Asked) -> None:
    """Read every runbook, also those beside the inventory, and show every mistake, with file and line."""
    from lodger.plans import runbook as books

    folders = books.folders(asked.fleet.folder)
    mistakes = [mistake for folder in folders for mistake in books.check(folder)]
    if asked.json:
        print_json(mistakes)
    else:
        read = ", ".join(f"{len(list(folder.glob('*.md')))} in {folder}" for folder in folders)
        print("\n".join(mistakes) or f"every runbook is valid: {read}")
    end([2] if mistakes else [])
