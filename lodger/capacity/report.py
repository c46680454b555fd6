"""The capacity of whole hosts, printed and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lodger.capacity import draw
from lodger.capacity.prediction import Option, Prediction
from lodger.capacity.subject import Subject
from lodger.errors import UsageError


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
