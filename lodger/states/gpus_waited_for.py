"""A worker's GPUs are free for it again after a pause."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner
from lodger.release.service import Service
from lodger.states.base import Blocker
from lodger.states.gpus_free import GpusFree, Promised


class GpusWaitedFor(GpusFree):
    """The worker's GPUs are free for it: it waits for the processes on them instead of refusing."""

    def __init__(
        self,
        service: Service,
        host: str,
        *,
        neighbours: Collection[Owner],
        promised: Promised,
        replaced: Sequence[Owner],
        patience: float,
    ) -> None:
        """Take what GpusFree takes, and how long to wait (s)."""
        super().__init__(service, host, neighbours=neighbours, promised=promised, replaced=replaced)
        self.deadline = patience
        self.only_waits = True

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is on the port: nobody may use that."""
        return self._port_taken(read)

    def progress(self, read: Facts) -> str:
        """Return the processes that are waited for."""
        held = [
            f"waiting for pid {process.pid} of user {process.user} ({owner}), `{process.command[:60]}`"
            for process, owner in self._strangers(read)
        ]
        return "; ".join(held[:3]) or self.missing(read)
