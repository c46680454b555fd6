"""A worker's place behind the routers of its pool: out while it changes, in again when it serves what the pool does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lodger import facts, membership
from lodger.command import Command
from lodger.facts import Fact, Facts
from lodger.membership import Closed, Identities, Mate, Rotation, Seat
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.key import held_fact, in_use
from lodger.states.service import Managed, ServiceState

Due = Callable[[Facts], bool]


@dataclass(frozen=True)
class Keyring:
    """The key that a pool asks for: the file of the ``header`` that curl on this host sends ("" for none).

    ``mark`` is that of the key which the worker or router asks for once this command is done, "" for none.
    """

    header: str = ""
    pool: str = ""
    mark: str = ""

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """Which key the host has."""
        return (held_fact(self.pool),) if self.mark else ()

    def strangers(self, read: Facts, told: Mapping[str, Any], others: Iterable[Mate]) -> list[Blocker]:
        """Return who of ``others`` asks for another key once this command is done, by what each has ``told``.

        With the key that is to be: those that are closed to it. With the one before: those that are open to that.
        """
        changes = bool(self.mark) and in_use(read[held_fact(self.pool)]) != self.mark
        return [
            Blocker(f"{other.name} asks for another key than its pool is to", hint="deploy its host in the same command")
            for other in others
            if not other.changing and (isinstance(told.get(other.url), Closed) if not changes else bool(told.get(other.url)))
        ]


NO_KEY = Keyring()


@dataclass(frozen=True)
class Place:
    """Where a worker stands in its pool.

    ``seats`` are its places at the pool's routers, ``former`` those of what runs now where it is reached elsewhere, ``mates``
    the pool's other workers, ``own`` its own URL, ``keyring`` what all of them ask for.
    """

    own: str = ""
    seats: tuple[Seat, ...] = ()
    mates: tuple[Mate, ...] = ()
    keyring: Keyring = NO_KEY
    former: tuple[Seat, ...] = ()

    @property
    def key(self) -> str:
        """The file of the header that curl sends, "" for none."""
        return self.keyring.header

    @property
    def rotation(self) -> Fact[Rotation]:
        """What its routers list."""
        return membership.rotation_fact([seat.router for seat in self.seats], self.key)

    @property
    def identities(self) -> Fact[Identities]:
        """What it serves, and its mates where a router mixes them."""
        urls = [self.own, *(mate.url for mate in self.mates if self.seats)] if self.own else []
        return membership.identities_fact(urls, self.key)

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """All that says how it stands there."""
        return self.rotation, self.identities, *self.keyring.facts

    def listed(self, read: Facts) -> list[Seat]:
        """Return the seats that the worker has now, former ones too."""
        return [seat for seat in (*self.seats, *self.former) if seat.worker in (read[self.rotation][seat.router] or {})]

    def healthy(self, read: Facts) -> list[Seat]:
        """Return the seats at which it gets requests, former ones too."""
        return [seat for seat in (*self.seats, *self.former) if (read[self.rotation][seat.router] or {}).get(seat.worker)]

    def answering(self, read: Facts) -> list[Seat]:
        """Return the seats at routers that answer, and to us."""
        told = read[self.rotation]
        return [seat for seat in self.seats if told[seat.router] is not None and not isinstance(told[seat.router], Closed)]

    def is_silent(self, mate: Mate, read: Facts) -> bool:
        """Whether a mate was asked what it serves and did not answer."""
        said = read[self.identities].get(mate.url)
        return said is not None and not said and not isinstance(said, Closed)

    def strangers(self, read: Facts, wanted: Mapping[str, str]) -> list[Blocker]:
        """Return who would not serve the same as ``wanted`` once this command is done, and who asks for another key."""
        found = []
        for mate in self.mates:
            differs = membership.differences(read[self.identities].get(mate.url, {}), wanted)
            if differs and not mate.changing:
                what = f"{mate.name} does not serve what the rest of its pool is to serve"
                found.append(
                    Blocker(what, ", ".join(differs), f"deploy its host in the same command, or ask who runs {mate.url}")
                )
        routers = [Mate(f"the router at {seat.router}", seat.router, seat.changing) for seat in self.seats]
        identities, rotation = read[self.identities], read[self.rotation]
        told = {**identities, **rotation}
        return [*found, *self.keyring.strangers(read, told, [*self.mates, *routers])]

    def gap(self, read: Facts, start: float) -> str:
        """Return what the worker's absence means for the pool, "" where another one serves; ``start`` is its longest (s)."""
        others = {url for listed in read[self.rotation].values() for url, healthy in (listed or {}).items() if healthy}
        if others - {seat.worker for seat in (*self.seats, *self.former)} or (self.mates and not self.seats):
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
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, self._serving, *place.facts, *reads)
        self.deadline = 30.0
        self.undo_deadline = 60.0

    def missing(self, read: Facts) -> str:
        """Return which routers still send it requests, and what its absence means for the pool."""
        listed = self._place.listed(read)
        if not listed or not self._due(read):
            return ""
        routers = " and ".join(seat.router for seat in listed)
        return f"{routers} sends it requests{self._place.gap(read, self.service.start)}"

    def remark(self, read: Facts) -> str:
        """Return how long nobody answers where there is no router that could say so."""
        gap = self._place.gap(read, self.service.start) if self._place.own and not self._place.seats and self._due(read) else ""
        return f"{self.service.name} is stopped{gap}" if gap else ""

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
        answering = {seat.router for seat in self._place.answering(now)}
        gone = [s for s in self._place.healthy(before) if s.router in answering and s not in self._place.healthy(now)]
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

    def remark(self, read: Facts) -> str:
        """Return nothing: it is not waited for."""
        del read
        return ""

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
        self.facts: tuple[Fact[Any], ...] = (facts.CONTAINERS, self._serving, *place.facts, *reads)
        self.deadline = self.undo_deadline = 60.0

    def _out(self, read: Facts) -> list[Seat]:
        return [seat for seat in self._place.answering(read) if seat not in self._place.healthy(read)]

    def _former(self, read: Facts) -> list[Seat]:
        return [seat for seat in self._place.listed(read) if seat in self._place.former]

    def missing(self, read: Facts) -> str:
        """Return which router does not send it requests, or sends them to where it is no more."""
        if not self._due(read):
            return ""
        for seat in self._out(read):
            return f"{seat.router} does not send it requests"
        for seat in self._former(read):
            return f"{seat.router} still knows it as {seat.worker}"
        return ""

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
        """Return its joining, and that it leaves where it is reached no more."""
        return [
            *(membership.leave(seat, self._place.key) for seat in self._former(read)),
            *(membership.join(seat, self._place.key) for seat in self._out(read)),
        ]

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
    """Who is to stand behind one router: its URL on its own host, its workers, and what all of them ask for."""

    router: str
    members: tuple[Mate, ...] = ()
    keyring: Keyring = NO_KEY


class PoolComplete(State):
    """The router lists the workers of its pool that serve, all of them and nobody else, and sends requests to some.

    Its file says the same. With nobody who serves, all of them paused say, there is nobody to send requests to.
    """

    def __init__(self, roll: Roll) -> None:
        """Take who is to stand behind the router."""
        self.name = "pool_complete"
        self._roll = roll
        self._names = {member.url: member.name for member in roll.members}
        self._rotation = membership.rotation_fact([roll.router], roll.keyring.header)
        self._identities = membership.identities_fact(list(self._names), roll.keyring.header)
        self.facts: tuple[Fact[Any], ...] = (self._rotation, self._identities, *roll.keyring.facts)
        self.deadline = 60.0

    def _differs(self, read: Facts) -> tuple[list[str], list[str]]:
        """Return who is listed and should not be, and who serves and is not listed."""
        listed = read[self._rotation][self._roll.router]
        if listed is None or isinstance(listed, Closed):
            return [], []
        return sorted(listed.keys() - self._names.keys()), [url for url in self._serving(read) if url not in listed]

    def _serving(self, read: Facts) -> list[str]:
        return [url for url in self._names if read[self._identities][url]]

    def missing(self, read: Facts) -> str:
        """Return the first stranger, the first worker that is not there, or that all of them count as dead."""
        for blocker in self.blockers(read):
            return blocker.what
        strangers, absent = self._differs(read)
        if strangers:
            return f"{strangers[0]} is in the rotation of {self._roll.router} and no worker of its pool"
        if absent:
            return f"{self._names[absent[0]]} serves and is not in the rotation of {self._roll.router}"
        listed = read[self._rotation][self._roll.router]
        if isinstance(listed, Closed):
            return f"{self._roll.router} asks for another key"
        if listed is not None and self._serving(read) and not any(listed.values()):
            return f"{self._roll.router} sends requests to nobody"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return the workers that ask for another key: the router would get nothing from them."""
        return self._roll.keyring.strangers(read, read[self._identities], self._roll.members)

    def act(self, read: Facts) -> list[Command]:
        """Return who leaves and who joins."""
        strangers, absent = self._differs(read)
        router, key = self._roll.router, self._roll.keyring.header
        return [
            *(membership.leave(Seat(router, url), key) for url in strangers),
            *(membership.join(Seat(router, url), key) for url in absent),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it: the list belongs to the router's process, and its workers decide for themselves when they leave."""
        del before, now
        return NoUndo("the router's list is made anew by its next deploy")
