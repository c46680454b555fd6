"""Restarts take turns: within a pool only one host at a time, and none after one host has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lodger.errors import StateFailed


class PoolQueue:
    """Which host holds each pool, shared by the runs of one command."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside: dict[str, str] = {}
        self._failed: str = ""

    def enter(self, pool: str, host: str, waiting: Callable[[str], None]) -> None:
        """Wait until no other host holds ``pool``, then hold it for ``host``; raise StateFailed once another host has failed.

        ``waiting(other)`` is called with the host that holds the pool, about once a second, and may raise to give up.
        """
        with self._change:
            while self._inside.get(pool, host) != host and not self._failed:
                waiting(self._inside[pool])
                self._change.wait(1.0)
            if self._failed and self._failed != host:
                raise StateFailed(
                    f"{self._failed} failed, so nothing more is restarted", hint="repair that host first, then run this again"
                )
            self._inside[pool] = host

    def leave(self, host: str) -> None:
        """Release every pool that ``host`` holds."""
        with self._change:
            self._inside = {pool: inside for pool, inside in self._inside.items() if inside != host}
            self._change.notify_all()

    def fail(self, host: str) -> None:
        """Let no other host hold a pool any more: ``host`` has failed."""
        with self._change:
            self._failed = self._failed or host
            self._change.notify_all()
