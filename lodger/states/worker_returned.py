"""A worker that this run stopped gets requests again."""

from __future__ import annotations

from lodger.host import facts
from lodger.release.service import Service
from lodger.states.pool_place import PoolPlace
from lodger.states.registry import state
from lodger.states.stopped import stopped_by_run
from lodger.states.target import Target
from lodger.states.worker_joined import WorkerJoined


@state("worker_returned", each="worker", needs_running=True)
class WorkerReturned(WorkerJoined):
    """A worker that this run stopped gets requests again."""

    def __init__(self, service: Service, host: str, place: PoolPlace) -> None:
        """Take the service, its host, and its place in the pool."""
        super().__init__(service, host, place, lambda read: f"unit {service.unit}" in stopped_by_run(read)[0], [facts.LEDGER])
        self.name = f"worker_returned({service.name.removeprefix('worker-')})"

    @classmethod
    def of(cls, target: Target, item: Service) -> WorkerReturned:
        """Return the state for ``item``."""
        return cls(item, target.host.name, PoolPlace.of(target, item))
