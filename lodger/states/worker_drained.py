"""A worker that is about to change gets no new requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.release.service import Service
from lodger.states.base import Blocker, NoUndo
from lodger.states.pool_place import Due, PoolPlace, take_out
from lodger.states.registry import state
from lodger.states.service_base import ServiceState
from lodger.states.target import Target


@state("worker_drained", each="worker", needs_running=True)
class WorkerDrained(ServiceState):
    """A worker that is about to be stopped gets no new requests from its pool's routers, and those it had are answered."""

    def __init__(
        self,
        service: Service,
        host: str,
        place: PoolPlace,
        due: Due | None = None,
        reads: Sequence[Fact[Any]] = (),
        *,
        changes_pool: bool = False,
    ) -> None:
        """Take the service, its host, its place, and whether it will be stopped (default: when it runs something else).

        ``changes_pool``: the worker will serve something else than before, so that all of its pool has to change.
        """
        super().__init__(service, host)
        self.name = f"worker_drained({service.name.removeprefix('worker-')})"
        self._place, self._changes_pool = place, changes_pool
        self._due = due or (lambda read: self._runs(read) and not self._runs_this(read))
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, self._serving, *place.facts, *reads)
        self.deadline = 30.0
        self.undo_deadline = 60.0

    @classmethod
    def of(cls, target: Target, item: Service) -> WorkerDrained:
        """Return the state for ``item``."""
        was, place = target.present.get(item.name), PoolPlace.of(target, item)
        changes = was is not None and bool(place.api.differences(was.identity, item.identity))
        return cls(item, target.host.name, place, changes_pool=changes)

    def missing(self, read: Facts) -> str:
        """Return which routers still send it requests, and what its absence means for the pool."""
        listed = self._place.listed(read)
        if not listed or not self._due(read):
            return ""
        routers = " and ".join(entry.router for entry in listed)
        return f"{routers} sends it requests{self._place.outage_note(read, self.service.start)}"

    def remarks(self, read: Facts) -> list[str]:
        """Return the outage of a pool without a router, and which silent worker may come back with what it served before."""
        place = self._place
        alone = place.own and not place.entries and self._due(read)
        gap = place.outage_note(read, self.service.start) if alone else ""
        silent = [one.name for one in place.members if place.is_silent(one, read) and not one.changing]
        return [
            *([f"{self.service.name} is stopped{gap}"] if gap else []),
            *(
                f"{name} does not answer, and may come back with what it served before: deploy its host too"
                for name in sorted(silent if self._changes_pool else [])
            ),
        ]

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return the members of its pool that would not match it afterwards."""
        return self._place.conflicts(read, self.service.identity)

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that take it out of the routers' lists and wait for its running requests."""
        return take_out(self._place, self._place.listed(read), read[self._serving], self.service)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that add it to the same routers again."""
        gone = [entry for entry in self._place.listed(before) if entry not in self._place.listed(now)]
        return [self._place.api.join(entry, self._place.header) for entry in gone] or NoUndo("no router listed it")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return which router does not send it requests as before."""
        answering = {entry.router for entry in self._place.answering(now)}
        gone = [s for s in self._place.healthy(before) if s.router in answering and s not in self._place.healthy(now)]
        return f"{gone[0].router} does not send it requests again" if gone else ""
