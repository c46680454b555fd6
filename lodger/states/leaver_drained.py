"""A service that is about to be removed gets no new requests."""

from __future__ import annotations

from lodger.host.facts.base import Facts
from lodger.release.service import Service
from lodger.states.base import Blocker
from lodger.states.pool_place import PoolPlace
from lodger.states.registry import state
from lodger.states.target import Target
from lodger.states.worker_drained import WorkerDrained


@state("leaver_drained", each="service that is no longer wanted")
class LeaverDrained(WorkerDrained):
    """A service that is about to be removed gets no new requests from its pool's routers, and those it had are answered."""

    def __init__(self, service: Service, host: str, place: PoolPlace) -> None:
        """Take the service as the earlier release defines it, its host, and its place."""
        super().__init__(service, host, place, lambda _: True)
        self.name = f"leaver_drained({service.name})"

    @classmethod
    def of(cls, target: Target, item: Service) -> LeaverDrained:
        """Return the state for ``item``."""
        return cls(item, target.host.name, PoolPlace.of(target, item))

    def remarks(self, read: Facts) -> list[str]:
        """Return nothing: the service does not come back."""
        del read
        return []

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return nothing: a service that is removed need not match the rest of the pool."""
        del read
        return []
