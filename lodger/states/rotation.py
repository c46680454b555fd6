"""A worker's place behind the routers of its pool: out while it changes, in again when it serves what the pool does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lodger import facts, membership
from lodger.command import Command
from lodger.facts import Fact, Facts
from lodger.membership import Identities, Mate, Rotation, Seat
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.service import Managed, ServiceState

Due = Callable[[Facts], bool]


@dataclass(frozen=True)
class Place:
    """Where a worker stands in its pool.

    ``seats`` are its places at the pool's routers, ``mates`` the pool's other workers, ``own`` its own URL, ``key`` the file
    of the header that all of them ask for ("" for none).
    """

    own: str = ""
    seats: tuple[Seat, ...] = ()
    mates: tuple[Mate, ...] = ()
    key: str = ""

    @property
    def rotation(self) -> Fact[Rotation]:
        """What its routers list."""
        return membership.rotation_fact([seat.router for seat in self.seats], self.key)

    @property
    def identities(self) -> Fact[Identities]:
        """What it serves, and its mates where a router mixes them."""
        urls = [self.own, *(mate.url for mate in self.mates if self.seats)] if self.own else []
        return membership.identities_fact(urls, self.key)

    def listed(self, read: Facts) -> list[Seat]:
        """Return the seats that the worker has now."""
        return [seat for seat in self.seats if seat.worker in (read[self.rotation][seat.router] or {})]

    def healthy(self, read: Facts) -> list[Seat]:
        """Return the seats at which it gets requests."""
        return [seat for seat in self.seats if (read[self.rotation][seat.router] or {}).get(seat.worker)]

    def answering(self, read: Facts) -> list[Seat]:
        """Return the seats at routers that answer."""
        return [seat for seat in self.seats if read[self.rotation][seat.router] is not None]

    def strangers(self, read: Facts, wanted: Mapping[str, str]) -> list[Blocker]:
        """Return the mates that would not serve the same as ``wanted`` once this command is done."""
        found = []
        for mate in self.mates:
            differs = membership.differences(read[self.identities].get(mate.url, {}), wanted)
            if differs and not mate.changing:
                what = f"{mate.name} does not serve what the rest of its pool is to serve"
                found.append(
                    Blocker(what, ", ".join(differs), f"deploy its host in the same command, or ask who runs {mate.url}")
                )
        return found

    def gap(self, read: Facts, start: float) -> str:
        """Return what the worker's absence means for the pool, "" where another one serves; ``start`` is its longest (s)."""
        others = {url for listed in read[self.rotation].values() for url, healthy in (listed or {}).items() if healthy}
        if others - {seat.worker for seat in self.seats} or (self.mates and not self.seats):
            return ""
        took = read[self.identities].get(self.own, {}).get("scheduler_e2e", "")
        least = f"its last start took {float(took):.0f} s" if took else f"a start may take {start:.0f} s"
        return f"; nobody else serves the pool: there will be no answers until it is ready again ({least})"


class WorkerDrained(ServiceState):
    """A worker that is about to be stopped gets no new requests from its pool's routers, and those it had are answered."""

    def __init__(
        self, service: Managed, host: str, place: Place, due: Due | None = None, reads: Sequence[Fact[Any]] = ()
    ) -> None:
        """Take the service, its host, its place, and whether it is to be stopped; without, when it runs something else."""
        super().__init__(service, host)
        self.name = f"worker_drained({service.name.removeprefix('worker-')})"
        self._place = place
        self._due = due or (lambda read: self._runs(read) and not self._runs_this(read))
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, self._serving, place.rotation, place.identities, *reads)
        self.deadline = 30.0
        self.undo_deadline = 60.0

    def missing(self, read: Facts) -> str:
        """Return which routers still send it requests, and what its absence means for the pool."""
        listed = self._place.listed(read)
        if not listed or not self._due(read):
            return ""
        routers = " and ".join(seat.router for seat in listed)
        return f"{routers} sends it requests{self._place.gap(read, self.service.start)}"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return the mates that it could not stand beside afterwards."""
        return self._place.strangers(read, self.service.identity)

    def act(self, read: Facts) -> list[Command]:
        """Return its leave, and the wait for what it is still answering."""
        return _out(self._place, self._place.listed(read), read[self._serving], self.service)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what puts it back where it was."""
        gone = [seat for seat in self._place.listed(before) if seat not in self._place.listed(now)]
        return [membership.join(seat, self._place.key) for seat in gone] or NoUndo("it was in no rotation")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return which router does not send it requests as before."""
        answering = self._place.answering(now)
        gone = [s for s in self._place.healthy(before) if s in answering and s not in self._place.healthy(now)]
        return f"{gone[0].router} does not send it requests again" if gone else ""


def _out(place: Place, seats: Sequence[Seat], serving: facts.Serving, service: Managed) -> list[Command]:
    wait = membership.drained(f"http://{serving.address}:{serving.port}", place.key, int(service.stop))
    return [*(membership.leave(seat, place.key) for seat in seats), *([wait] if serving.address else [])]


class LeaverDrained(WorkerDrained):
    """A service that is about to be removed gets no new requests from its pool's routers, and those it had are answered."""

    def __init__(self, service: Managed, host: str, place: Place) -> None:
        """Take the service as the earlier release defines it, its host, and its place."""
        super().__init__(service, host, place, lambda _: True)
        self.name = f"leaver_drained({service.name})"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return nothing: who leaves need not agree with who stays."""
        del read
        return []


class WorkerJoined(ServiceState):
    """The pool's routers send the worker requests, and it serves what its pool serves. One that is away is no hindrance."""

    def __init__(
        self, service: Managed, host: str, place: Place, due: Due = lambda _: True, reads: Sequence[Fact[Any]] = ()
    ) -> None:
        """Take the service, its host, its place, and whether it is to be in rotation at all."""
        super().__init__(service, host)
        self.name = f"worker_joined({service.name.removeprefix('worker-')})"
        self._place, self._due = place, due
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, self._serving, place.rotation, place.identities, *reads)
        self.deadline = self.undo_deadline = 60.0

    def _out(self, read: Facts) -> list[Seat]:
        return [seat for seat in self._place.answering(read) if seat not in self._place.healthy(read)]

    def missing(self, read: Facts) -> str:
        """Return which router does not send it requests."""
        out = self._out(read)
        return f"{out[0].router} does not send it requests" if out and self._due(read) else ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return what it, or a mate, serves otherwise than the pool: such a one does not join."""
        found = self._place.strangers(read, self.service.identity)
        own = membership.differences(read[self._place.identities].get(self._place.own, {}), self.service.identity)
        if own and self._runs_this(read):
            what = f"{self.service.name} does not serve what its pool is to serve"
            found.append(
                Blocker(what, ", ".join(own), f"look who answers at {self._place.own}, and what its command line says")
            )
        return found

    def act(self, read: Facts) -> list[Command]:
        """Return its joining."""
        return [membership.join(seat, self._place.key) for seat in self._out(read)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return its leave: what follows stops it. Where it was before is put back by the state that took it out."""
        del before
        listed = self._place.listed(now)
        return _out(self._place, listed, now[self._serving], self.service) if listed else NoUndo("it is in no rotation")

    def undone(self, before: Facts, now: Facts) -> str:
        """Return which router still sends it requests."""
        del before
        listed = self._place.listed(now)
        return f"{listed[0].router} still sends it requests" if listed else ""


@dataclass(frozen=True)
class Roll:
    """Who is to stand behind one router: its URL on its own host, each worker's URL -> name, and the file of the header."""

    router: str
    members: Mapping[str, str] = field(default_factory=dict)
    key: str = ""


class PoolComplete(State):
    """The router lists the workers of its pool that serve, all of them and nobody else; its file says the same."""

    def __init__(self, roll: Roll) -> None:
        """Take who is to stand behind the router."""
        self.name = "pool_complete"
        self._roll = roll
        self._rotation = membership.rotation_fact([roll.router], roll.key)
        self._identities = membership.identities_fact(list(roll.members), roll.key)
        self.facts = (self._rotation, self._identities)
        self.deadline = 60.0

    def _differs(self, read: Facts) -> tuple[list[str], list[str]]:
        """Return who is listed and should not be, and who serves and is not listed."""
        listed = read[self._rotation][self._roll.router]
        if listed is None:
            return [], []
        serving = [url for url in self._roll.members if read[self._identities][url]]
        return sorted(listed.keys() - self._roll.members.keys()), [url for url in serving if url not in listed]

    def missing(self, read: Facts) -> str:
        """Return the first stranger, or the first worker that is not there."""
        strangers, absent = self._differs(read)
        if strangers:
            return f"{strangers[0]} is in the rotation of {self._roll.router} and no worker of its pool"
        return f"{self._roll.members[absent[0]]} serves and is not in the rotation of {self._roll.router}" if absent else ""

    def act(self, read: Facts) -> list[Command]:
        """Return who leaves and who joins."""
        strangers, absent = self._differs(read)
        router, key = self._roll.router, self._roll.key
        return [
            *(membership.leave(Seat(router, url), key) for url in strangers),
            *(membership.join(Seat(router, url), key) for url in absent),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it: the list belongs to the router's process, and its workers decide for themselves when they leave."""
        del before, now
        return NoUndo("the router's list is made anew by its next deploy")
