"""Verbs that show what earlier runs did: journal, postmortem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lodger.tasks.options import JSON, Asked, verb
from lodger.tasks.output import print_json

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415


@verb(
    replace(JSON, help="print JSON"),
    help={"show": "the run to show: its name, or the beginning of it", "verify": "check the chain of hashes of every run"},
)
def journal(asked: Asked, show: str | None = None, verify: bool = False) -> None:
    """List the runs of this checkout, show one, or check that no line of any was changed."""
    from lodger.run import history

    text, data = history.show(show) if show else history.verify_all() if verify else history.listing()
    if asked.json:
        print_json(data)
    else:
        print(text)


@verb(
    replace(JSON, help="print the document in a JSON object"),
    positional=["run"],
    help={"run": "the run: its name, or the beginning of it", "out": "file to write; standard output without it"},
)
def postmortem(asked: Asked, run: str, out: str | None = None) -> None:
    """Write a postmortem of a run: summary, impact, timeline, changes, evidence; root cause and follow-ups are left to you."""
    from lodger.run import history

    text = history.postmortem(run)
    if out:
        Path(out).write_text(text, encoding="utf-8")
    if asked.json:
        print_json({"run": run, "document": text})
    elif not out:
        print(text)
