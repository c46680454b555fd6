"""How far a fetch is: what the host's script said, what it comes to in bytes, how fast it goes. Pure, but for the screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lodger.terminal import Terminal
from lodger.weights.host import Glimpse
from lodger.weights.plan import FetchPlan, Planned

_WINDOW = 10.0  # seconds over which a rate is reckoned


@dataclass(frozen=True)
class Said:
    """What the script's log comes to: what each file (by number from 1) is at, what is new to tell, and how it ended.

    ``end`` is "" while it goes on, ``ok``, or why it failed; ``errors`` are the files that made it fail.
    """

    doing: Mapping[int, str] = field(default_factory=dict)
    news: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    end: str = ""
    waiting: bool = False


def listen(before: Said, lines: Sequence[str]) -> Said:
    """Return what the log comes to after more ``lines`` of it; a word that nobody knows is passed over."""
    doing, errors, end, waiting = dict(before.doing), list(before.errors), before.end, before.waiting
    news = []
    for line in lines:
        word, number, text = (*line.split("\t", 2), "", "")[:3]
        if word in {"check", "get", "kept", "done"} and number.isdigit():
            doing[int(number)], waiting = word, False
        elif word in {"retry", "note"}:
            news.append(text)
        elif word == "error":
            errors.append(text)
        elif word == "begin":
            # Somebody killed it, and systemd began it again.
            doing, errors, end, waiting = {}, [], "", False
        elif word == "wait":
            waiting = True
        elif word == "end":
            end = text or "it ended without a reason"
    return Said(doing, tuple(news), tuple(errors), end, waiting)


def arrived(plan: FetchPlan, said: Said, glimpse: Glimpse) -> list[tuple[Planned, int, str]]:
    """Return each file in the order of the plan's lines, the bytes of it that are there, and what it is at ("" for nothing).

    Of a file that is being hashed, those that were hashed count.
    """
    out = []
    for number, file in enumerate(plan.ordered, start=1):
        at = said.doing.get(number, "get" if f"{file.key}.part" in glimpse.half else "")
        if at in {"kept", "done"}:
            there = file.size
        elif at == "check":
            there = glimpse.hashed.get(f"{plan.target}/{file.path}", 0)
        else:
            there = glimpse.half.get(f"{file.key}.ok", glimpse.half.get(f"{file.key}.part", 0))
        out.append((file, min(there, file.size), at))
    return out


class Rate:
    """Bytes a second, over the last seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def after(self, moment: float, total: int) -> float:
        """Return the rate now that ``total`` bytes are there at ``moment`` (s)."""
        if self._seen and total < self._seen[-1][1]:
            self._seen = []  # something was thrown away
        self._seen = [one for one in self._seen if one[0] > moment - _WINDOW] or self._seen[-1:]
        self._seen.append((moment, total))
        first = self._seen[0]
        return (total - first[1]) / (moment - first[0]) if moment > first[0] else 0.0


def line(model: str, there: int, size: int, rate: float, done: int, count: int) -> str:
    """Return the progress of one model in one line: share, bytes, files, rate, and the time that is left."""
    left = _duration((size - there) / rate) if rate >= 1000 else "?"
    share = 100 * there // size if size else 100
    amount = f"{there / 1e9:.2f} of {size / 1e9:.2f} GB, {done} of {count} files"
    return f"{model}: {share}%, {amount}, {rate / 1e6:.1f} MB/s, {left} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"


class Screen:
    """Shows fetches on standard error: on a terminal a bar for each file under way and one for all, elsewhere plain lines."""

    def __init__(self, *, bars: bool | None = None) -> None:
        self.terminal = Terminal()
        self._bars: Progress | None = None
        self._tasks: dict[tuple[str, str, str], int] = {}
        self._rates: dict[tuple[str, str], Rate] = {}
        if sys.stderr.isatty() if bars is None else bars:
            from rich.console import Console  # noqa: PLC0415  late: only a terminal needs it
            from rich.progress import (  # noqa: PLC0415  only a terminal needs it
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                speed_estimate_period=_WINDOW,
            )
            self._bars.start()

    def close(self) -> None:
        """Leave the screen as it is."""
        if self._bars is not None:
            self._bars.stop()

    def bars(self) -> dict[str, tuple[int, int]]:
        """Return the bars that are shown: what each stands for -> bytes that are there, and in all."""
        tasks = self._bars.tasks if self._bars is not None else []
        return {task.description: (int(task.completed), int(task.total or 0)) for task in tasks}

    def note(self, host: str, text: str) -> None:
        """Show a line that stays."""
        if self._bars is not None:
            self._bars.console.print(f"{host}  {text}", markup=False, highlight=False)
        else:
            self.terminal.note(host, text)

    def show(self, host: str, plan: FetchPlan, said: Said, glimpse: Glimpse) -> None:
        """Show where a fetch is."""
        files = arrived(plan, said, glimpse)
        there = sum(size for _, size, _ in files)
        if self._bars is None:
            rate = self._rates.setdefault((host, plan.model), Rate()).after(time.monotonic(), there)
            done = sum(at in {"kept", "done"} for _, _, at in files)
            text = line(plan.model, there, plan.size, rate, done, len(files))
            self.terminal.progress(host, f"{plan.model}: waits for another fetch of this host" if said.waiting else text)
            return
        self._bar((host, plan.model, ""), f"{host}  {plan.model}", there, plan.size)
        for file, size, at in files:
            key = (host, plan.model, file.path)
            if at in {"get", "check"}:
                self._bar(key, f"  {file.path.rpartition('/')[2][:40]}{' (hashing)' if at == 'check' else ''}", size, file.size)
            elif key in self._tasks:
                self._bars.remove_task(self._tasks.pop(key))  # type: ignore[arg-type]  # rich's TaskID is an int

    def _bar(self, key: tuple[str, str, str], text: str, there: int, size: int) -> None:
        assert self._bars is not None  # noqa: S101  # for the type checker: only show calls this
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(text, total=size)
        self._bars.update(self._tasks[key], completed=there, description=text)  # type: ignore[arg-type]  # as above
