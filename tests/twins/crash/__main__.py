"""Strike a run at every point and print the table: `python -m tests.twins.crash [SCENARIO] ...`, or `./ops lab.crash`.

Every point's result is kept in `.lab/crash/<scenario>.jsonl` as soon as it is known: `--resume` goes on from there, and passes
over what passed.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lab.checkpoint import Checkpoint
from lab.lab import Lab
from lab.run import CHECKOUT
from lab.twin import Twin
from tests.twins.crash import scenarios
from tests.twins.crash.harness import KINDS, PHASES, RESTARTED, Acted, Point, Scenario, commands, points, strike
from tests.twins.site import Site

FOLDER = CHECKOUT / ".lab" / "crash"
SCENARIOS = ("driver_upgrade", "deploy")


class Bench:
    """One twin to strike at, with a lab, an inventory and a mailbox of its own."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        only = FOLDER / f"hosts-{number}"  # of the inventory only the host that is struck: another twin would only take time
        shutil.rmtree(only, ignore_errors=True)
        shutil.copytree(CHECKOUT / "hosts", only)
        (only / "node2.yml").unlink()
        lab = Lab(FOLDER / str(number), only)
        lab.up()
        self.site, self.mailbox = Site(lab, folder / f"site-{number}"), folder / f"mailbox-{number}"
        scenario: Scenario = getattr(scenarios, name)(lab)
        first = Checkpoint.take(scenario.twin(self.site), lab.dir / "checkpoint")

        def twin(_: Site) -> Twin:
            first.restore()
            scenario.settle(first.twin)
            return first.twin

        self.scenario = replace(scenario, twin=twin)


class Table:
    """What became of each point, on disk and in words."""

    def __init__(self, path: Path, acted: list[Acted]) -> None:
        self.path, self.acted = path, acted
        self.wrong: dict[Point, list[str]] = {}
        self.restarted: set[Point] = set()  # points after which Docker had to be restarted
        self._lock = threading.Lock()

    def load(self) -> None:
        """Take over what an earlier call found."""
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            data = json.loads(line)
            point = Point(data["kind"], data["command"], data["phase"])
            self.wrong[point] = data["wrong"]
            self.restarted |= {point} if data["restarted"] else set()

    def add(self, point: Point, seconds: float, wrong: list[str], said: str) -> None:
        """Note and print what became of ``point``, and how long that took."""
        with self._lock, self.path.open("a") as file:
            self.wrong[point] = wrong
            self.restarted |= {point} if RESTARTED in said else set()
            file.write(json.dumps({**point.__dict__, "wrong": wrong, "restarted": RESTARTED in said}) + "\n")
            where = f"{point} ({self.acted[int(point.command)].why}) {seconds:.0f} s"
            print(f"WRONG  {where}: {wrong}\n{said}" if wrong else f"well   {where}", flush=True)

    def text(self, kinds: Collection[str], phases: Collection[str]) -> str:
        """Return the table: a row a kind, a column a moment, passed of struck."""
        struck = Counter((point.kind, point.phase) for point in self.wrong)
        well = Counter((point.kind, point.phase) for point, wrong in self.wrong.items() if not wrong)
        rows = [f"{'':<8}" + "".join(f"{phase:>14}" for phase in phases)]
        for kind in kinds:
            cells = [f"{well[kind, phase]} of {struck[kind, phase]}" if struck[kind, phase] else "-" for phase in phases]
            rows.append(f"{kind:<8}" + "".join(f"{cell:>14}" for cell in cells))
        return "\n".join([*rows, *(f"{RESTARTED} after {point}" for point in self.restarted)])


def numbers(text: str, count: int) -> set[int]:
    """Return the command indexes in ``text`` ("3-9,12"), all of ``count`` for nothing."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)} if spans else set(range(count))


def main() -> None:
    """Strike at every point that was asked for; end with 1 when any went wrong."""
    parse = argparse.ArgumentParser(prog="lab.crash")
    parse.add_argument("scenario", nargs="?", default="driver_upgrade", choices=SCENARIOS)
    parse.add_argument("--kinds", default=",".join(KINDS))
    parse.add_argument("--phases", default=",".join(PHASES))
    parse.add_argument("--points", default="", help="indexes of commands: 3-9,12")
    parse.add_argument("--twins", type=int, default=1)
    parse.add_argument("--resume", action="store_true")
    asked = parse.parse_args()
    kinds, phases = asked.kinds.split(","), asked.phases.split(",")
    FOLDER.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ThreadPoolExecutor(asked.twins) as pool:
            benches = list(pool.map(lambda number: Bench(asked.scenario, number, folder), range(asked.twins)))
        acted = commands(benches[0].scenario, benches[0].site, benches[0].mailbox)
        table = Table(FOLDER / f"{asked.scenario}.jsonl", acted)
        if asked.resume:
            table.load()
        else:
            table.path.unlink(missing_ok=True)
        wanted = numbers(asked.points, len(acted))
        left = [p for p in points(acted, kinds, phases) if p.command in wanted and table.wrong.get(p) != []]
        print(f"{asked.scenario}: {len(acted)} commands act, {len(left)} points to strike at", flush=True)
        free: queue.SimpleQueue[Bench] = queue.SimpleQueue()
        for bench in benches:
            free.put(bench)

        def work(point: Point) -> None:
            bench, began = free.get(), time.monotonic()
            wrong, said = strike(bench.scenario, bench.site, point, bench.mailbox, acted[int(point.command)].seconds / 2)
            table.add(point, time.monotonic() - began, wrong, said)
            free.put(bench)

        with ThreadPoolExecutor(len(benches)) as pool:
            list(pool.map(work, left))
    passed = sum(not wrong for wrong in table.wrong.values())
    print(f"\n{table.text(kinds, phases)}")
    print(f"{passed} of {len(table.wrong)} points passed, {(time.monotonic() - start) / 60:.0f} minutes")
    sys.exit(passed != len(table.wrong))


if __name__ == "__main__":
    main()
