"""The capacity of whole hosts: worked out, learnt, printed, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from lodger import capacity
from lodger.capacity import NoRoom, Prediction, Subject, advice, draw
from lodger.capacity.advice import Option
from lodger.errors import UsageError
from lodger.inventory import Fleet, Host


@dataclass(frozen=True)
class Entry:
    """One worker's capacity, and the changes that would give more, or most of what was asked for."""

    host: str
    worker: str
    subject: Subject
    prediction: Prediction
    options: tuple[Option, ...]

    @property
    def title(self) -> str:
        """Host and worker."""
        return f"{self.host} {self.worker}"


def of(fleet: Fleet, hosts: Sequence[Host], solve: str | None = None) -> list[Entry]:
    """Return every worker of ``hosts``; ``solve`` is ``context`` or ``concurrency``.

    Raises NoRoom for a worker that would not start, InventoryError for a model whose files are not kept.
    """
    if solve is not None and solve not in get_args(advice.Goal):
        raise UsageError(f"`--solve {solve}` is nothing to solve for", hint=f"one of: {', '.join(get_args(advice.Goal))}")
    entries = []
    for host in hosts:
        for name, worker in host.workers.items():
            about = capacity.needed(fleet, host, worker)
            try:
                prediction = about.predict()
            except NoRoom as error:
                error.host = f"{host.name} {name}"
                raise
            if solve is None:
                options = advice.options(about)
            else:
                options = advice.solve(about, "context" if solve == "context" else "concurrency")
            entries.append(Entry(host.name, name, about, prediction, tuple(options)))
    return entries


def learn(fleet: Fleet, hosts: Sequence[Host], given: str) -> str:
    """Take ``WORKER=TOKENS`` as what the engine of that worker reported, and return how far the prediction was off.

    For an engine whose pool is rightly below the floor, which smoke would refuse each time. Raises UsageError.
    """
    name, _, tokens = given.partition("=")
    hint = "--host NAME --learn WORKER=TOKENS, with the engine's max_total_num_tokens"
    if len(hosts) != 1 or not tokens.isdigit() or int(tokens) == 0:
        raise UsageError(f"`--learn {given}` does not say one worker of one host and its tokens", hint=hint)
    (host,) = hosts
    if name not in host.workers:
        raise UsageError(f"there is no worker {name} on {host.name}", hint=f"there is: {', '.join(host.workers)}")
    capacity.needed(fleet, host, host.workers[name])
    return str(capacity.learn(fleet, host, host.workers[name], int(tokens)))


def show(entries: Sequence[Entry]) -> None:
    """Print every entry; on a pipe as wide as in a terminal of 120 columns."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for position, entry in enumerate(entries):
        if position:
            console.print()
        draw.show(console, entry.title, entry.subject, entry.prediction, entry.options)


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return one object a host."""
    hosts = dict.fromkeys(entry.host for entry in entries)
    return [
        {
            "host": host,
            "workers": [
                draw.as_json(entry.worker, entry.subject, entry.prediction, entry.options)
                for entry in entries
                if entry.host == host
            ],
        }
        for host in hosts
    ]


def picture(entries: Sequence[Entry], path: Path) -> None:
    """Write one bar a worker as SVG."""
    try:
        path.write_text(draw.svg([(entry.title, entry.prediction) for entry in entries]), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}", cause=error.strerror or str(error), hint="--svg FILE, in a folder that is there"
        ) from error
