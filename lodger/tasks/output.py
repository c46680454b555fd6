"""What a task prints at its end: a line or a JSON object for each host, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from lodger.errors import LodgerError, worst

if TYPE_CHECKING:
    from lodger.run.dry_run import DryRun
    from lodger.run.outcome import RunResult


def as_json(result: RunResult) -> dict[str, Any]:
    """Return the JSON object of one host."""
    data: dict[str, Any] = {
        "host": result.host,
        "task": result.task,
        "outcome": str(result.status),
        "changed": result.changed,
        "states": [{"name": s.name, "outcome": str(s.status), "seconds": round(s.seconds, 2)} for s in result.states],
        "round_trips": result.round_trips,
        "seconds": round(result.seconds, 2),
        "journal": result.journal,
    }
    if result.remarks:
        data["remarks"] = list(result.remarks)
    if result.error is not None:
        data["error"] = {"what": result.error.what, "cause": result.error.cause, "hint": result.error.hint}
    if result.losses or result.news:
        data["footprint"] = {
            "lost": [str(change) for change in result.losses],
            "new": [str(change) for change in result.news],
        }
    return data


def finish(results: Sequence[RunResult], *, as_json_array: bool) -> None:
    """Print the result of each host and end with the worst exit code."""
    from lodger.terminal import Terminal  # noqa: PLC0415  late, like the rest

    terminal = Terminal()
    for result in results:
        if result.error is not None:
            terminal.error(result.error, result.evidence)
        for change in result.losses:
            terminal.note(result.host, f"foreign, lost or changed: {change}")
        for change in result.news:
            terminal.note(result.host, f"changed meanwhile, not by Lodger: {change}")
    if as_json_array:
        print_json([as_json(result) for result in results])
    else:
        for result in results:
            print(summary(result))
    end([result.exit_code for result in results])


def summary(result: RunResult) -> str:
    """Return one line for one host."""
    what = {
        "satisfied": result.found or "nothing to change",
        "done": f"done, {len(result.changed)} of {len(result.states)} changed",
        "refused": "refused, nothing was changed",
        "failed": "failed",
        "undo failed": "FAILED, AND NOT PUT BACK",
    }[str(result.status)]
    if str(result.status) == "failed" and any(str(state.status) == "undone" for state in result.states):
        what = "failed; the host is as it was before"
    if result.unfinished:
        what = f"failed, and an earlier run is still unfinished: run it again, or ./ops rollback --host {result.host}"
    if result.losses:
        what += "; something foreign was lost or changed"
    trips = f", {result.round_trips} round trips" if result.round_trips else ""
    return f"{result.host}: {what} ({result.seconds:.1f} s{trips})"


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def failed(task: str, host: str, error: LodgerError) -> dict[str, Any]:
    """Return the JSON object of a task that ended before any host had a result of its own."""
    said = {"what": error.what, "cause": error.cause, "hint": error.hint}
    outcome = "refused" if error.refusal else "failed"
    nothing = {"changed": [], "states": [], "round_trips": 0, "seconds": 0.0, "journal": ""}
    return {"host": host, "task": task, "outcome": outcome, **nothing, "error": said}


def show_dry_runs(seen: Sequence[DryRun], *, as_json_array: bool) -> None:
    """Print what runs would do, and end with the worst exit code."""
    if as_json_array:
        print_json([one.as_json() for one in seen])
    else:
        print("\n\n".join(one.text() for one in seen))
    end([one.exit_code for one in seen])


def end(codes: Sequence[int]) -> None:
    """End the task with the worst of ``codes``."""
    if code := worst(list(codes)):
        raise Exit(code=code)
