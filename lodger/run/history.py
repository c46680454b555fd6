"""Earlier runs, read from their journals: a list, one run, the check of their chains, and the document for a postmortem."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from lodger.errors import UsageError
from lodger.run import journal
from lodger.run.journal import journals
from lodger.states.registry import states
from lodger.terminal import table

JournalEvent = dict[str, Any]


def runs() -> list[Path]:
    """Return the journals of all runs, oldest first."""
    return sorted(journals().glob("*/events.jsonl"))


def find(run: str) -> Path:
    """Return the one journal whose run begins with ``run``; raise UsageError for none or several."""
    found = [path for path in runs() if path.parent.name.startswith(run)]
    if len(found) != 1:
        what = "there is no run" if not found else f"{len(found)} runs begin with"
        raise UsageError(f"{what} {run}", hint="./ops journal lists them")
    return found[0]


def listing() -> tuple[str, list[JournalEvent]]:
    """Return the list of runs as text and as data, newest last."""
    rows = []
    for path in runs():
        events = list(journal.read(path))
        begin, end = _first(events, "begin"), _first(events, "end")
        outcome = end.get("outcome", "cut off")
        rows.append(
            {
                "run": path.parent.name,
                "operator": begin.get("operator", ""),
                "outcome": outcome,
                "changed": end.get("changed", []),
            }
        )
    if not rows:
        return "no run yet", []
    return table(
        [("run", "operator", "outcome", "changed"), *((*list(row.values())[:3], len(row["changed"])) for row in rows)]
    ), rows


def show(run: str) -> tuple[str, list[JournalEvent]]:
    """Return the events of one run, a line each, and as data."""
    events = list(journal.read(find(run)))
    return "\n".join(f"{event['time'][11:19]}  {_line(event)}" for event in events), events


def verify_all() -> tuple[str, list[JournalEvent]]:
    """Check the chain of every journal; raise LodgerError at the first that was changed."""
    found = runs()
    for path in found:
        journal.verify(path)
    return f"{len(found)} journals: every line follows the one before it", [
        {"run": path.parent.name, "chain": "holds"} for path in found
    ]


def postmortem(run: str) -> str:
    """Return a postmortem of one run in Markdown. What only a person can know is left as headings."""
    path = find(run)
    events = list(journal.read(path))
    begin, end = _first(events, "begin"), _first(events, "end")
    lines = [
        f"# {begin.get('runbook', '?')} on {begin.get('host', '?')}, {path.parent.name}",
        "",
        "## Summary",
        "",
        f"- Outcome: **{end.get('outcome', 'cut off: the journal has no end')}**"
        + (f" ({end['error']})" if end.get("error") else ""),
        f"- Operator: {begin.get('operator', '?')}, revision {str(begin.get('revision', '?'))[:12]}",
        f"- From {begin.get('time', '?')} to {events[-1]['time'] if events else '?'}",
        "",
        "## Impact",
        "",
        *_impact(events),
        "",
        "## What changed",
        "",
        *([f"- {name}" for name in end.get("changed", [])] or ["- nothing"]),
        *[f"- foreign, lost or changed: {what}" for event in events if event["event"] == "losses" for what in event["losses"]],
        "",
        "## Timeline",
        "",
        "| time | what |",
        "| --- | --- |",
        *[
            f"| {event['time'][11:19]} | {_line(event).replace('|', chr(92) + '|')} |"
            for event in events
            if event["event"] not in {"facts", "evidence"}
        ],
        "",
        "## Evidence",
        "",
        *_evidence(events),
        "",
        "## Root cause",
        "",
        "## Follow-ups",
        "",
    ]
    return "\n".join(lines)


def outages(events: list[JournalEvent]) -> list[tuple[str, datetime.datetime, datetime.datetime | None]]:
    """Return what was down: name, since when, until when (None: not back within this run).

    It is down from the first command of the state that stops it until the state that brings it back is done or satisfied.
    """
    found: dict[str, tuple[datetime.datetime, datetime.datetime | None]] = {}
    stopping: dict[str, list[str]] = {}
    for event in events:
        moment = datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
        state = str(event.get("state", ""))
        if event["event"] == "intent" and event["stops"]:
            stopping[state] = event["stops"]
        elif event["event"] == "command" and state in stopping:
            for name in stopping.pop(state):
                found.setdefault(name, (moment, None))
        elif event["event"] == "state" and event["outcome"] in {"done", "undone", "satisfied"}:
            for name, (since, until) in found.items():
                if until is None and _brings_back(state, event["outcome"], name):
                    found[name] = (since, moment)
    return [(name, since, until) for name, (since, until) in found.items()]


def _brings_back(state: str, outcome: str, name: str) -> bool:
    kind, _, item = state.rstrip(")").partition("(")
    service = name.rpartition(" ")[2].removeprefix("lodger-").removesuffix(".service")
    if item not in {name.rpartition(" ")[2], service, service.removeprefix("worker-")}:
        return False
    known = states().get(kind)
    return known is not None and (known.undo_brings_back if outcome == "undone" else known.brings_back)


def _impact(events: list[JournalEvent]) -> list[str]:
    rows = []
    for name, since, until in outages(events):
        back = f"to {until:%H:%M:%S} UTC, {(until - since).total_seconds():.0f} s" if until else "UTC on, not back in this run"
        rows.append(f"- {name}: down from {since:%H:%M:%S} {back}")
    return rows or ["- nobody was stopped"]


def _evidence(events: list[JournalEvent]) -> list[str]:
    failed = [event for event in events if event["event"] == "result" and event["code"] != 0]
    lines: list[str] = []
    for event in failed[-5:]:
        said = (event["stderr"] or event["stdout"]).strip().splitlines()[-8:]
        lines += [f"- `{event['state']}` ended with exit code {event['code']}:", "", *(f"      {line}" for line in said), ""]
    for event in events:
        if event["event"] == "evidence":
            lines += [f"- seen last of `{event['state']}`:", "", *(f"      {line}" for line in event["lines"]), ""]
    return lines or ["- every command ended as expected"]


def _first(events: list[JournalEvent], kind: str) -> JournalEvent:
    return next((event for event in events if event["event"] == kind), {})


def _line(event: JournalEvent) -> str:
    state = event.get("state", "")
    match event["event"]:
        case "begin":
            return f"begin {event['runbook']} by {event['operator']}"
        case "intent":
            return f"{state}: {event['missing']}" + (f" (stops {', '.join(event['stops'])})" if event["stops"] else "")
        case "command":
            command = " ".join(str(event["command"]).split())
            return f"{state}: `{command if len(command) <= 160 else command[:157] + '...'}`"
        case "result":
            return f"{state}: exit code {event['code']} after {event['seconds']} s"
        case "witness":
            said = " ".join("; ".join(event["disagree"]).split())
            return f"{state}: asked {', '.join(Path(file).name for file in event['files'])}: {said or 'all agree'}"
        case "check":
            return f"{state}: {event['said']}"
        case "state":
            return f"{state}: {event['outcome']}"
        case "end":
            return f"end: {event['outcome']} {event.get('error', '')}".rstrip()
        case other:
            rest = {key: value for key, value in event.items() if key not in {"n", "time", "event", "previous", "facts"}}
            return f"{other} {' '.join(f'{key}={value}' for key, value in rest.items() if value)}".strip()
