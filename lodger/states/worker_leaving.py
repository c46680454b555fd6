"""A worker that is about to be stopped gets no new requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.host.facts.base import Fact, Facts
from lodger.release.service import Service
from lodger.states.base import Blocker
from lodger.states.pool_place import PoolPlace
from lodger.states.registry import state
from lodger.states.stopped import Reached
from lodger.states.target import Target
from lodger.states.worker_drained import WorkerDrained


@state("worker_leaving", each="worker", needs_running=True)
class WorkerLeaving(WorkerDrained):
    """A worker that is about to be stopped gets no new requests from its pool's routers, until the goal is reached."""

    def __init__(self, service: Service, host: str, place: PoolPlace, reached: Reached, reads: Sequence[Fact[Any]]) -> None:
        """Take the service, its host, its place in the pool, and the goal."""
        super().__init__(service, host, place, lambda read: self._runs(read) and not reached(read), reads)
        self.name = f"worker_leaving({service.name.removeprefix('worker-')})"

    @classmethod
    def of(cls, target: Target, item: Service) -> WorkerLeaving:
        """Return the state for ``item``."""
        place = PoolPlace.of(target, item)
        return cls(item, target.host.name, place, target.goal.reached, target.goal.reads)

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return nothing: it comes back unchanged."""
        del read
        return []
