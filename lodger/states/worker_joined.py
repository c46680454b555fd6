"""A worker gets requests, and serves what its pool serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.engines.pool import RouterEntry
from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.release.service import Service
from lodger.states.base import Blocker, NoUndo
from lodger.states.pool_place import Due, PoolPlace, take_out
from lodger.states.registry import state
from lodger.states.service_base import ServiceState
from lodger.states.target import Target


@state("worker_joined", each="worker", needs_running=True)
class WorkerJoined(ServiceState):
    """The pool's routers send the worker requests, and it serves what its pool serves. A router that is down does not count."""

    def __init__(
        self, service: Service, host: str, place: PoolPlace, due: Due = lambda _: True, reads: Sequence[Fact[Any]] = ()
    ) -> None:
        """Take the service, its host, its place, and whether it should get requests at all."""
        super().__init__(service, host)
        self.name = f"worker_joined({service.name.removeprefix('worker-')})"
        self._place, self._due = place, due
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, self._serving, *place.facts, *reads)
        self.deadline = self.undo_deadline = 60.0

    @classmethod
    def of(cls, target: Target, item: Service) -> WorkerJoined:
        """Return the state for ``item``."""
        return cls(item, target.host.name, PoolPlace.of(target, item))

    def _out(self, read: Facts) -> list[RouterEntry]:
        return [entry for entry in self._place.answering(read) if entry not in self._place.healthy(read)]

    def _former(self, read: Facts) -> list[RouterEntry]:
        return [entry for entry in self._place.listed(read) if entry in self._place.old_entries]

    def missing(self, read: Facts) -> str:
        """Return which router does not send it requests, or sends them to its old address."""
        if not self._due(read):
            return ""
        for entry in self._out(read):
            return f"{entry.router} does not send it requests"
        for entry in self._former(read):
            return f"{entry.router} still lists its old address {entry.worker}"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return how it, or a member, differs from its pool: it does not join then."""
        found = self._place.conflicts(read, self.service.identity)
        own = self._place.api.differences(read[self._place.identities].get(self._place.own, {}), self.service.identity)
        if own and self._runs_this(read):
            what = f"{self.service.name} does not serve the same as its pool"
            found.append(
                Blocker(what, ", ".join(own), f"look which process answers at {self._place.own}, and with which options")
            )
        return found

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that add it to the routers' lists, and remove its old address."""
        return [
            *(self._place.api.leave(entry, self._place.header) for entry in self._former(read)),
            *(self._place.api.join(entry, self._place.header) for entry in self._out(read)),
        ]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that take it out: the next undo stops it. The state that took it out adds it again."""
        del before
        listed = self._place.listed(now)
        return take_out(self._place, listed, now[self._serving], self.service) if listed else NoUndo("no router lists it")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return which router still sends it requests."""
        del before
        listed = self._place.listed(now)
        return f"{listed[0].router} still sends it requests" if listed else ""
