"""Restarts take turns: within a pool only one host at a time, and none after one host has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lodger.errors import StateFailed


class PoolQueue:
    """One turnstile for each pool, shared by the runs of one command."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside: dict[str, str] = {}
        self._failed: str = ""

    def enter(self, pool: str, host: str, waiting: Callable[[str], None]) -> None:
        """Wait for ``host``'s turn in ``pool``; raise StateFailed once another host has failed.

        ``waiting(other)`` is called with the host that is inside, about once a second, and may raise to give up.
        """
        with self._change:
            while self._inside.get(pool, host) != host and not self._failed:
                waiting(self._inside[pool])
                self._change.wait(1.0)
            if self._failed and self._failed != host:
                raise StateFailed(
                    f"{self._failed} failed, so nothing more is restarted", hint="mend it first, then run this again"
                )
            self._inside[pool] = host

    def leave(self, host: str) -> None:
        """Let the next host in, everywhere."""
        with self._change:
            self._inside = {pool: inside for pool, inside in self._inside.items() if inside != host}
            self._change.notify_all()

    def fail(self, host: str) -> None:
        """Close every gate: ``host`` has failed."""
        with self._change:
            self._failed = self._failed or host
            self._change.notify_all()
