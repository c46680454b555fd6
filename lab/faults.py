"""Switch the simulated engine's faults: what can go wrong, and the file that says what does.

The file is `faults.json` in a twin's control folder. Engines read it again while they run, so a fault begins and, where it
can, ends within a tenth of a second of the file's change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a fault does, when it shows, and the parameters it takes with their meaning."""

    effect: str
    shows: str
    parameters: dict[str, str]


START, RUN = "at start", "while running"
KINDS: dict[str, Kind] = {
    "crash_at_start": Kind("ends with exit 1 before the GPUs are touched", START, {"message": "last line of its traceback"}),
    "cuda_mismatch": Kind("finds the driver too old (error 803), exit 1", START, {}),
    "weights_corrupted": Kind("cannot read its weights", START, {}),
    "oom_at_start": Kind("runs out of GPU memory while it loads", START, {}),
    "graph_capture_assert": Kind("fails in CUDA graph capture, as when memory ends there", START, {}),
    "slow_load": Kind("loads its weights slowly", START, {"factor": "how many times slower (10)"}),
    "never_healthy": Kind("serves, but /health stays 503", RUN, {}),
    "oom_at_long_request": Kind(
        "runs out of GPU memory at a long prompt, the whole group dies", RUN, {"tokens": "prompt length from which (2048)"}
    ),
    "crash": Kind(
        "the scheduler dies of an exception", RUN, {"after_seconds": "of readiness, simulated (0)", "message": "its last line"}
    ),
    "killed_scheduler": Kind("the scheduler is killed; the server follows some five seconds later", RUN, {}),
    "hung_scheduler": Kind("the scheduler stops until the fault is taken back; /health 503 after 20 s", RUN, {}),
    "dead_draft": Kind("the draft matches nothing: accept length 1.03, right answers, slow", RUN, {}),
    "garbage": Kind("answers are noise", RUN, {}),
    "slow": Kind("every step takes longer", RUN, {"factor": "how many times (1)"}),
}

Fault = dict[str, Any]


def fault(name: str, port: int | None = None, **parameters: Any) -> Fault:
    """Make one entry of the file; `port` None means every engine of the twin. Raises ValueError for an unknown name."""
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"no fault {name!r}; there are: {', '.join(KINDS)}")
    unknown = set(parameters) - set(kind.parameters)
    if unknown:
        known = ", ".join(kind.parameters) or "none"
        raise ValueError(f"fault {name} takes no {', '.join(sorted(unknown))}; it takes: {known}")
    return {"fault": name, **({"port": port} if port is not None else {}), **parameters}


def render(faults: Iterable[Fault]) -> str:
    """Return the file's content, for a writer that is elsewhere."""
    return json.dumps(list(faults), indent=1) + "\n"


def read(control: Path) -> list[Fault]:
    """Return the faults that are switched on."""
    try:
        found: list[Fault] = json.loads((control / "faults.json").read_text("utf-8"))
    except FileNotFoundError:
        return []
    return found


def write(control: Path, faults: Iterable[Fault]) -> None:
    """Replace the file; a reader sees the old one or the new one, never half of it."""
    beside = control / ".faults.json.new"
    beside.write_text(render(faults), "utf-8")
    beside.replace(control / "faults.json")


def set_fault(control: Path, name: str, port: int | None = None, **parameters: Any) -> Fault:
    """Switch a fault on (again, with other parameters); returns its entry."""
    entry = fault(name, port, **parameters)
    others = [each for each in read(control) if (each["fault"], each.get("port")) != (name, port)]
    write(control, [*others, entry])
    return entry


def clear_fault(control: Path, name: str | None = None, port: int | None = None) -> int:
    """Switch faults off: those of this name, this port, or all; returns how many there were."""
    before = read(control)
    kept = [
        each
        for each in before
        if (name is not None and each["fault"] != name) or (port is not None and each.get("port") != port)
    ]
    write(control, kept)
    return len(before) - len(kept)


def set_clock(control: Path, factor: float) -> None:
    """Make the engines of a twin run `factor` times faster than real time. Raises ValueError unless it is positive."""
    if not factor > 0:
        raise ValueError(f"the clock needs a positive factor, not {factor}")
    beside = control / ".clock.new"
    beside.write_text(f"{factor:g}\n", "utf-8")
    beside.replace(control / "clock")
