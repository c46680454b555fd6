"""Strikes a run at one point, runs it again, and has the lab's own judge look: nothing here asks the product how it went."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import judge
from lab.run import CHECKOUT
from lab.twin import Twin
from tests.lab.site import Site

KINDS = ("kill", "drop", "power")
PHASES = ("before", "during", "after")


@dataclass(frozen=True)
class Point:
    """One blow: what, at which command, and when."""

    kind: str
    index: int
    phase: str

    def __str__(self) -> str:
        return f"{self.kind} {self.phase} command {self.index}"


@dataclass(frozen=True)
class Scenario:
    """A task, how its twin begins, what must be true at the end, and which things may have restarted meanwhile."""

    words: tuple[str, ...]
    twin: Callable[[], Twin]
    goal: Callable[[Twin], list[str]]
    expected: Callable[[str, str], bool]
    restarted: Callable[[str, str], bool]


def points(count: int, kinds: tuple[str, ...] = KINDS, phases: tuple[str, ...] = PHASES) -> Iterator[Point]:
    """Yield every point of a run with ``count`` commands."""
    for index in range(count):
        for kind in kinds:
            for phase in phases:
                yield Point(kind, index, phase)


def strike(scenario: Scenario, site: Site, point: Point, mailbox: Path) -> tuple[list[str], str]:
    """Return what is wrong after the struck run and the one after it ([]: all is well), and what both said."""
    twin = scenario.twin()
    before = judge.snapshot(twin)
    said = run(site, scenario.words, point, mailbox, twin)
    again = site.ops(*scenario.words)
    wrong = [] if again.code == 0 else [f"the second run ended with exit code {again.code}"]
    wrong += scenario.goal(twin)
    wrong += judge.difference(before, judge.snapshot(twin), expected=scenario.expected, restarted=scenario.restarted)
    left = twin.exec("ls /var/lib/lodger/lock /var/lib/lodger/unfinished.json 2>/dev/null", check=False).stdout.split()
    wrong += [f"{path} was left" for path in left]
    return wrong, f"{said}\n--- again\n{again}"


def commands(scenario: Scenario, site: Site, mailbox: Path) -> int:
    """Return how many commands of an undisturbed run act."""
    twin = scenario.twin()
    said = run(site, scenario.words, Point("kill", -1, "before"), mailbox, twin)
    wrong = scenario.goal(twin)
    if wrong:
        raise AssertionError(f"the undisturbed run did not reach its goal: {wrong}\n{said}")
    return int((mailbox / "count").read_text())


def run(site: Site, words: tuple[str, ...], point: Point, mailbox: Path, twin: Twin) -> str:
    """Run the task with the blow at ``point``; return what it said."""
    mailbox.mkdir(parents=True, exist_ok=True)
    for old in mailbox.iterdir():
        old.unlink()
    argv = [sys.executable, "-m", "tests.lab.crash.shim", point.kind, str(point.index), point.phase, str(mailbox), "--", *words]
    with (mailbox / "said").open("w") as said:
        process = subprocess.Popen(argv, cwd=CHECKOUT, env=site.environment(), stdout=said, stderr=subprocess.STDOUT, text=True)
        end = time.monotonic() + 600
        while process.poll() is None:
            if time.monotonic() > end:
                process.kill()
                raise AssertionError(f"{point}: the struck run did not end within 600 s:\n{(mailbox / 'said').read_text()}")
            if (mailbox / "cut").exists() and not (mailbox / "on").exists():
                twin.kill()
                twin.start()
                (mailbox / "on").touch()
            time.sleep(0.05)
    return (mailbox / "said").read_text()
