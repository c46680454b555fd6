"""What an engine's log tells: how far a start is, why it ended, and who served which request."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# What Docker and its GPU hook say of a container that they cannot start, whatever is in it.
_CONTAINER = "nvidia-container-cli: "
_DOCKER = rf"{_CONTAINER}.*|Error response from daemon: .*|unsatisfied condition: .*"


@dataclass(frozen=True)
class Prefill:
    """One batch of prompts: tokens computed, and tokens found in the cache."""

    new: int
    cached: int


@dataclass(frozen=True)
class WorkerLog:
    """What one worker logged: its prefill batches in order, and the ids of the requests that it finished."""

    prefills: tuple[Prefill, ...]
    finished: frozenset[str]


@dataclass(frozen=True)
class LogLines:
    """The lines of one engine, as patterns.

    ``phases`` are a line and what it means to a person who waits, the last one of a start first. ``causes`` is what a line has
    in it that says why the engine ended. ``requests`` finds the lines from which ``read_requests`` tells who served what.
    """

    phases: tuple[tuple[str, str], ...]
    causes: str
    requests: str
    read_requests: Callable[[str], WorkerLog]

    def phase(self, log: str) -> str:
        """Return how far a start has come, "" when the log does not say."""
        for line in reversed(log.splitlines()):
            for pattern, meaning in self.phases:
                if re.search(pattern, line):
                    return meaning
        return ""

    def cause(self, log: str) -> str:
        """Return the line that says why the container ended, "" when none does."""
        pattern = re.compile(f"({_DOCKER}|{self.causes})")
        for line in reversed(log.splitlines()):
            # What a tool inside said stands at the end of a line that begins with what its caller says of it.
            inner = line.find(_CONTAINER)
            if match := pattern.search(line, max(inner, 0)):
                return match[1].strip()[:300]
        return ""
