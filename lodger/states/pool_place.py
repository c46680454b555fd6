"""The place of a worker in its pool, the members of a router, and the key of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lodger.engines import DEFAULT, named
from lodger.engines.pool import Identities, OtherKey, PoolApi, PoolMember, RouterEntry, RouterList
from lodger.host import facts, paths
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.keys import held_keys_fact, key_in_use
from lodger.inventory import Fleet, Host, Worker
from lodger.release.render import url
from lodger.release.service import Service
from lodger.states.base import Blocker
from lodger.states.target import Target

Due = Callable[[Facts], bool]


@dataclass(frozen=True)
class PoolKey:
    """The key that a pool requires: the file with the ``header`` that curl on this host sends ("" for none).

    ``mark`` is the mark of the key that the worker or router requires after this command, "" for none.
    """

    header: str = ""
    pool: str = ""
    mark: str = ""

    @classmethod
    def of(cls, fleet: Fleet, service: Service) -> PoolKey:
        """Return the key that the pool of ``service`` requires."""
        pool = service.pool
        keyed = bool(service.key) or (pool in fleet.pools and fleet.pools[pool].api_key_file is not None)
        return cls(paths.key(pool) if keyed else "", pool, service.key)

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """Which key the host has."""
        return (held_keys_fact(self.pool),) if self.mark else ()

    def conflicts(self, read: Facts, told: Mapping[str, Any], others: Iterable[PoolMember]) -> list[Blocker]:
        """Return which of ``others`` will require another key than this one after this command, by what each has ``told``.

        When the host has the new key already: those that refuse it. When it still has the old key: those that accept that one.
        """
        changes = bool(self.mark) and key_in_use(read[held_keys_fact(self.pool)]) != self.mark
        return [
            Blocker(
                f"{other.name} does not use the key that its pool is to use",
                hint="deploy its host in the same command: --host NAME,NAME",
            )
            for other in others
            if not other.changing and (isinstance(told.get(other.url), OtherKey) if not changes else bool(told.get(other.url)))
        ]


NO_KEY = PoolKey()


@dataclass(frozen=True)
class PoolPlace:
    """The place of a worker in its pool.

    ``entries`` are its entries in the routers' lists, ``old_entries`` those of the installed one that has another address,
    ``members`` the other workers, ``own`` its own URL, ``pool_key`` the key of all of them, ``api`` how they are asked.
    """

    own: str = ""
    entries: tuple[RouterEntry, ...] = ()
    members: tuple[PoolMember, ...] = ()
    pool_key: PoolKey = NO_KEY
    old_entries: tuple[RouterEntry, ...] = ()
    api: PoolApi = DEFAULT.pool

    @classmethod
    def of(cls, target: Target, service: Service) -> PoolPlace:
        """Return the place of ``service`` after this run, with the old entries of what is installed now."""
        fleet, host = target.fleet, target.host
        if service.kind != "worker" or service.pool not in fleet.pools:
            return cls()
        together = target.options.together

        def entries(one: Service) -> tuple[RouterEntry, ...]:
            return tuple(
                RouterEntry(
                    url(host.name, other, other.router.listen, other.router.port),
                    url(other.name, host, one.listen, one.port, one.address),
                    other.name in {*together, host.name},
                )
                for _, other in sorted(fleet.hosts.items())
                if other.router is not None and other.router.pool == one.pool
            )

        members = [
            _member(host, other, worker, other.name in together)
            for other, worker in fleet.pool_workers(service.pool)
            if (other.name, f"worker-{worker.name}") != (host.name, service.name)
        ]
        now, runs = entries(service), target.present.get(service.name)
        old_entries = tuple(entry for entry in (entries(runs) if runs else ()) if entry not in now)
        own = url(host.name, host, service.listen, service.port)
        return cls(own, now, tuple(members), PoolKey.of(fleet, service), old_entries, named(service.engine).pool)

    @property
    def header(self) -> str:
        """The file of the header that curl sends, "" for none."""
        return self.pool_key.header

    @property
    def rotation(self) -> Fact[RouterList]:
        """What its routers list."""
        return self.api.rotation_fact([entry.router for entry in self.entries], self.header)

    @property
    def identities(self) -> Fact[Identities]:
        """What it serves, and its members where a router mixes them."""
        urls = [self.own, *(member.url for member in self.members if self.entries)] if self.own else []
        return self.api.identities_fact(urls, self.header)

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """Every fact about its place."""
        return self.rotation, self.identities, *self.pool_key.facts

    def listed(self, read: Facts) -> list[RouterEntry]:
        """Return the entries that the worker has now, old ones too."""
        return [
            entry for entry in (*self.entries, *self.old_entries) if entry.worker in (read[self.rotation][entry.router] or {})
        ]

    def healthy(self, read: Facts) -> list[RouterEntry]:
        """Return the entries at which it gets requests, old ones too."""
        return [
            entry for entry in (*self.entries, *self.old_entries) if (read[self.rotation][entry.router] or {}).get(entry.worker)
        ]

    def answering(self, read: Facts) -> list[RouterEntry]:
        """Return the entries at routers that answer us."""
        told = read[self.rotation]
        return [
            entry for entry in self.entries if told[entry.router] is not None and not isinstance(told[entry.router], OtherKey)
        ]

    def is_silent(self, member: PoolMember, read: Facts) -> bool:
        """Whether a member was asked what it serves and did not answer."""
        said = read[self.identities].get(member.url)
        return said is not None and not said and not isinstance(said, OtherKey)

    def conflicts(self, read: Facts, wanted: Mapping[str, str]) -> list[Blocker]:
        """Return which members will not serve the same as ``wanted`` after this command, and which require another key."""
        found = []
        for member in self.members:
            differs = self.api.differences(read[self.identities].get(member.url, {}), wanted)
            if differs and not member.changing:
                what = f"{member.name} does not serve the same as the rest of its pool would"
                found.append(
                    Blocker(
                        what,
                        ", ".join(differs),
                        f"deploy its host in the same command (--host NAME,NAME), or ask who runs {member.url}",
                    )
                )
        routers = [PoolMember(f"the router at {entry.router}", entry.router, entry.changing) for entry in self.entries]
        identities, rotation = read[self.identities], read[self.rotation]
        told = {**identities, **rotation}
        return [*found, *self.pool_key.conflicts(read, told, [*self.members, *routers])]

    def outage_note(self, read: Facts, start: float) -> str:
        """Return what the worker's absence means for its pool, "" when another one serves; ``start`` is its longest (s)."""
        others = {url for listed in read[self.rotation].values() for url, healthy in (listed or {}).items() if healthy}
        if others - {entry.worker for entry in (*self.entries, *self.old_entries)} or (self.members and not self.entries):
            return ""
        took = self.api.start_s(read[self.identities].get(self.own, {}))
        least = f"its last start took {took:.0f} s" if took is not None else f"a start may take {start:.0f} s"
        return f"; no other worker serves the pool: it does not answer until this one is ready again ({least})"


def take_out(place: PoolPlace, entries: Sequence[RouterEntry], serving: facts.Serving, service: Service) -> list[Command]:
    """Return the commands that take a worker out of its routers' lists and wait for its running requests."""
    wait = place.api.drained(f"http://{serving.address}:{serving.port}", place.header, int(service.stop))
    return [*(place.api.leave(entry, place.header) for entry in entries), *([wait] if serving.address else [])]


def _member(seen_from: Host, host: Host, worker: Worker, changing: bool) -> PoolMember:
    where = url(seen_from.name, host, worker.listen, worker.port)
    return PoolMember(f"worker {worker.name} on {host.name}", where, changing)


@dataclass(frozen=True)
class RouterMembers:
    """The members that one router should list: its URL on its own host, its workers, their key, how they are asked."""

    router: str
    members: tuple[PoolMember, ...] = ()
    pool_key: PoolKey = NO_KEY
    api: PoolApi = DEFAULT.pool

    @classmethod
    def of(cls, target: Target, router: Service) -> RouterMembers:
        """Return the members that ``router`` of the target's host should list."""
        fleet, host, together = target.fleet, target.host, target.options.together
        pool = router.pool or target.pool_of("router")
        members = [
            _member(host, other, worker, other.name in together)
            for other, worker in fleet.pool_workers(pool)
            if other.name != host.name
        ]
        for service in target.release.services.values():
            if service.kind == "worker" and service.pool in {"", pool}:
                here = url(host.name, host, service.listen, service.port)
                members.append(PoolMember(f"{service.name} on {host.name}", here, changing=True))
        here = url(host.name, host, router.listen, router.port)
        return cls(here, tuple(members), PoolKey.of(fleet, router), named(router.engine).pool)
