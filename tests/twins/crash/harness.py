"""Strikes a run at one point, runs it again, and has the lab's own judge look: nothing here asks the product how it went."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import judge
from lab.run import CHECKOUT
from lab.twin import Twin
from tests.twins.site import Site

KINDS = ("kill", "drop", "power")
PHASES = ("during", "after", "before")
DURING = 0.25  # seconds into a command
# Power lost while Docker starts a container leaves its port taken until Docker is restarted (moby/libnetwork#2448). No guest may
# do that, so that the run says what failed and what is left; here the lab does it as the host's people would.
_PORT = "port is already allocated"
RESTARTED = "Docker had to be restarted"


@dataclass(frozen=True)
class Point:
    """One blow: what, at which command (its number, or words of its reason: the first such command), and when."""

    kind: str
    command: int | str
    phase: str

    def __str__(self) -> str:
        return f"{self.kind} {self.phase} command {self.command}"


@dataclass(frozen=True)
class Scenario:
    """A task, how its twin (and the inventory) begins, what must be true at the end, and what may have restarted meanwhile.

    ``settle`` has a twin that was booted from a checkpoint be as ``twin`` left it.
    """

    words: tuple[str, ...]
    twin: Callable[[Site], Twin]
    settle: Callable[[Twin], None]
    goal: Callable[[Twin], list[str]]
    expected: Callable[[str, str], bool]
    restarted: Callable[[str, str], bool]


@dataclass(frozen=True)
class Acted:
    """A command of an undisturbed run: why it is run, and how long it took (s)."""

    why: str
    seconds: float


def points(acted: Sequence[Acted], kinds: Collection[str] = KINDS, phases: Collection[str] = PHASES) -> Iterator[Point]:
    """Yield every point of a run. Power lost before a command leaves the host as power lost after the one before it does."""
    for phase in phases:
        for index in range(len(acted)):
            for kind in kinds:
                if kind != "power" or phase != "before" or index == 0:
                    yield Point(kind, index, phase)


# A ledger that is there with nothing in it is no missing one.
_LEDGER = 'f=/var/lib/lodger/unfinished.json; [ ! -e $f ] || { [ -s $f ] && cat $f || echo \'{"run": "a ledger with nothing in it"}\'; }'


def strike(scenario: Scenario, site: Site, point: Point, mailbox: Path, delay: float = DURING) -> tuple[list[str], str]:
    """Return what is wrong after the struck run and the one after it ([]: all is well), and what both said.

    ``delay`` is how far into a command (s) a blow falls that falls while it runs.
    """
    twin = scenario.twin(site)
    before = judge.snapshot(twin)
    known = set(site.journal.glob("*/events.jsonl"))
    code, said = run(site, scenario.words, point, mailbox, twin, delay)
    ledger = twin.exec(_LEDGER).stdout
    again = site.ops(*scenario.words)
    if dockers_own := _PORT in said + str(again):
        said += f"\n{RESTARTED}"
        twin.exec("systemctl restart docker")
        again = site.ops(*scenario.words)
    if not (mailbox / "struck").exists():
        return ["the blow did not fall"], said
    lived = code == 0 or point.kind == "kill" or dockers_own
    wrong = [] if lived else [f"the struck run lived on and ended with exit code {code}"]
    wrong += [] if again.code == 0 else [f"the second run ended with exit code {again.code}"]
    wrong += scenario.goal(twin)
    wrong += judge.difference(before, judge.snapshot(twin), expected=scenario.expected, restarted=scenario.restarted)
    left = twin.exec("ls /var/lib/lodger/lock /var/lib/lodger/unfinished.json 2>/dev/null", check=False).stdout.split()
    wrong += [f"{path} was left" for path in left]
    wrong += explained(sorted(set(site.journal.glob("*/events.jsonl")) - known), ledger, mailbox / "struck")
    return wrong, f"{said}\n--- again\n{again}"


def explained(journals: Sequence[Path], ledger: str, blow: Path) -> list[str]:
    """Return what the journals of the struck run and of those after it do not tell.

    ``ledger`` is what the struck run left on the host, "" for nothing: the second run must have gone on from it. A struck
    run that lived on and did anything after the ``blow`` (a file, whose text is the moment) must say what befell it.
    """
    if len(journals) < 2:
        return [f"there are {len(journals)} journals of two runs"]
    wrong = [f"{path.parent.name}: the chain is broken" for path in journals if not _chained(path)]
    struck, after, *_ = ([json.loads(line) for line in path.read_bytes().splitlines()] for path in journals)
    named = [event["ledger"] for event in after if event["event"] == "facts"]
    if named != [json.loads(ledger)["run"] if ledger else None]:
        wrong.append(f"the second run went on from {named}")
    later = [event["event"] for event in struck if event["time"] >= blow.read_text()]
    if later[-1:] == ["end"] and later != ["end"] and "connection lost" not in later:
        wrong.append("the struck run does not say that its connection was lost")
    last = json.loads(journals[-1].read_bytes().splitlines()[-1])
    if last["event"] != "end" or last["outcome"] not in {"done", "satisfied"}:
        wrong.append("the last run has no good end")
    return wrong


def _chained(path: Path) -> bool:
    previous = "0" * 64
    for line in path.read_bytes().splitlines():
        if json.loads(line)["previous"] != previous:
            return False
        previous = hashlib.sha256(line).hexdigest()
    return True


def commands(scenario: Scenario, site: Site, mailbox: Path) -> list[Acted]:
    """Return the commands of an undisturbed run that act."""
    twin = scenario.twin(site)
    _, said = run(site, scenario.words, Point("kill", -1, "before"), mailbox, twin)
    wrong = scenario.goal(twin)
    if wrong:
        raise AssertionError(f"the undisturbed run did not reach its goal: {wrong}\n{said}")
    return [Acted(**json.loads(line)) for line in (mailbox / "acted").read_text().splitlines()]


def run(site: Site, words: tuple[str, ...], point: Point, mailbox: Path, twin: Twin, delay: float = DURING) -> tuple[int, str]:
    """Run the task with the blow at ``point``; return how it ended, and what it said."""
    mailbox.mkdir(parents=True, exist_ok=True)
    for old in mailbox.iterdir():
        old.unlink()
    blow = [point.kind, str(point.command), point.phase, str(delay), str(mailbox)]
    argv = [sys.executable, "-m", "tests.twins.crash.shim", *blow, "--", *words]
    with (mailbox / "said").open("w") as said:
        process = subprocess.Popen(argv, cwd=CHECKOUT, env=site.environment(), stdout=said, stderr=subprocess.STDOUT, text=True)
        end = time.monotonic() + 600
        while process.poll() is None:
            if time.monotonic() > end:
                process.kill()
                return 1, (mailbox / "said").read_text() + "it did not end within 600 s\n"
            if (mailbox / "cut").exists() and not (mailbox / "on").exists():
                twin.kill()
                twin.start()
                (mailbox / "on").touch()
            time.sleep(0.05)
    return process.returncode, (mailbox / "said").read_text()
