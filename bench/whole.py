"""Whole processes, timed in turn: each round runs every side once, so that a machine that slows down slows all alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lodger.checkout import CODE as ROOT
from lodger.errors import LodgerError
from lodger.terminal import table

_LONGEST = 900.0  # seconds, an installation too

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Side:
    """One program of a comparison.

    ``changed`` reads from what it printed how many things it changed, and raises ValueError where it does not say so;
    ``after`` is done once it has ended, and is not timed.
    """

    name: str
    argv: Sequence[str]
    stdin: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    changed: Callable[[Done], int] = lambda _: 0
    after: Callable[[], None] = lambda: None


def once(side: Side) -> tuple[float, Done]:
    """Run one side; return its seconds and what it left. Raises LodgerError when it fails, or changed anything."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            side.argv,
            input=side.stdin,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **side.environment},
            timeout=_LONGEST,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise LodgerError(f"{side.name} could not be run to its end", cause=str(error)) from error
    seconds = time.perf_counter() - start
    side.after()
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-600:]
    if done.returncode != 0:
        raise LodgerError(f"{side.name} ended with exit code {done.returncode}", cause=said)
    try:
        changed = side.changed(done)
    except ValueError as error:
        raise LodgerError(f"{side.name} does not say what it changed", cause=str(error)) from error
    if changed:
        hint = "is somebody else at work there? ./ops plan shows what Lodger makes of it"
        raise LodgerError(f"{side.name} changed {changed} of what was to stay as it is", cause=said, hint=hint)
    return seconds, done


def in_turn(sides: Sequence[Side], times: int) -> list[list[float]]:
    """Return the seconds of ``times`` runs of each side, after one of each that only shows that it has nothing to change."""
    found: list[list[float]] = [[] for _ in sides]
    for number in range(times + 1):
        sys.stderr.write(f"  round {number} of {times}\n" if number else "  each once, to see that it has nothing to change\n")
        for side, counted in zip(sides, found, strict=True):
            seconds, _ = once(side)
            if number:
                counted.append(seconds)
    return found


def figures(names: Sequence[str], seconds: Sequence[Sequence[float]]) -> str:
    """Return minimum, median and maximum of each side as a table."""
    rows = [
        (name, *(f"{value:.2f} s" for value in (min(one), statistics.median(one), max(one))))
        for name, one in zip(names, seconds, strict=True)
    ]
    return table([("", "min", "median", "max"), *rows])


def compared(ours: Sequence[float], floor: Sequence[float]) -> str:
    """Return how many times as long ours takes: by the medians, and by the least and the greatest of all rounds."""
    rounds = [one / other for one, other in zip(ours, floor, strict=True)]
    middle = statistics.median(ours) / statistics.median(floor)
    return f"{middle:.2f} of medians, {min(rounds):.2f} to {max(rounds):.2f} in a round"
