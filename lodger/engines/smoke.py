"""What a smoke test comes to, whatever engine is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lodger.host.command import Command, Secret, Transport, quote


@dataclass(frozen=True)
class SmokeFigures:
    """What a worker that passed every check showed.

    ``checks`` is their number, ``reply`` a chat reply, ``ttft_s`` and ``tokens_per_s`` the pace of one undisturbed stream.
    ``kv_tokens`` and ``running`` are its KV cache and the requests that it really runs at once, as it says itself.
    """

    checks: int
    reply: str = ""
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    kv_tokens: int | None = None
    running: int | None = None

    def __str__(self) -> str:
        """Return the number of checks and the pace."""
        first = f", first token after {self.ttft_s:.2f} s" if self.ttft_s is not None else ""
        pace = f", {self.tokens_per_s:.0f} token/s" if self.tokens_per_s else ""
        return f"{self.checks} smoke checks passed{first}{pace}"


Ask = Callable[[str, Secret | None, Callable[[str], None]], SmokeFigures]
"""Asks the worker at a URL with a key, told of each check as it is made; raises StateFailed at the first that did not pass."""


def key_on_host(transport: Transport, path: str) -> Secret | None:
    """Return the key in the file ``path`` on the host, None for no path: after a rollback only the host has it."""
    if not path:
        return None
    read = Command(f"sed -n 's/^Authorization: Bearer //p' {quote([path])}", why="ask with the key that the worker has")
    return Secret(transport.run(read).check(transport.host).stdout.strip())
