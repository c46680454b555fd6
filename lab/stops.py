"""How a worker was stopped, by its own log: with nothing left to answer and nobody asking, or under its clients."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STOP, _START = "SIGTERM received", "server_args="
_LEFT = re.compile(r"Gracefully exiting\.\.\. Remaining number of requests (\d+)\.")
_RECEIVED = re.compile(r'"event": ?"request\.received"')


@dataclass(frozen=True)
class Stop:
    """One stop: how many requests were ``left`` when the engine first looked (None: it never did), how many came after it."""

    left: int | None
    came: int

    @property
    def unnoticed(self) -> bool:
        """Whether no client had anything to do with it: clients and a router's second try do not show that."""
        return self.left == 0 and self.came == 0


def stops(log: str) -> list[Stop]:
    """Return the stops in a worker's ``log`` (its unit's journal), each up to the next start of the engine."""
    found = []
    for block in log.split(_STOP)[1:]:
        until_start = block.partition(_START)[0]
        left = _LEFT.search(until_start)
        found.append(Stop(int(left[1]) if left else None, len(_RECEIVED.findall(until_start))))
    return found
