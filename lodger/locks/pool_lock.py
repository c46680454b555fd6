"""The lock of a pool, on the host of its router: only one run at a time restarts something in a pool.

Within one command ``process_queue`` does the same in memory. Two runs never wait for each other: a pool's lock is taken after
the lock of the run's own host, and the locks of several pools are taken in the order of their names.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lodger.errors import ConnectionFailed, ConnectionLost, LodgerError, Refused, StateFailed
from lodger.host import facts, paths
from lodger.host.command import Command, Result, Transport
from lodger.host.facts.base import Fact
from lodger.host.identity import only_there
from lodger.inventory import Host
from lodger.locks import host_lock

_PATIENCE = 7200.0  # seconds: the longest stop, start and smoke of a worker, for three runs that wait before this one
_POLL = 5.0

_SILENT = "its owner no longer renews the lock: if that run is dead, run this again with --break-lock"

T = TypeVar("T")

Waiting = Callable[[str], None]
"""Called with the run that is waited for, again and again; raises to give up."""


def _who(held: host_lock.Attempt) -> str:
    return str(held.owner) if held.owner else "an owner that left no name"


@dataclass
class _Held:
    """The lock of one pool since this run took it; ``lost`` says how it was lost, "" while it is held."""

    transport: Transport
    path: str
    done: threading.Event = field(default_factory=threading.Event)
    lost: str = ""


class PoolLock:
    """The pool locks of one run, held while it has a service of these pools stopped.

    ``own`` is the run's connection to its host. ``routers`` is pool -> host of its router, to which ``connect`` connects.
    A pool without a router has no lock. ``note`` shows a line when a router's host cannot be reached, so that there is no lock.
    """

    def __init__(
        self,
        me: host_lock.LockOwner,
        own: Transport,
        routers: Mapping[str, Host],
        connect: Callable[[Host], Transport],
        note: Callable[[str], None],
        *,
        break_lock: bool = False,
        poll: float = _POLL,
        patience: float = _PATIENCE,
    ) -> None:
        self._me, self._own, self._routers, self._connect, self._note = me, own, routers, connect, note
        self._break_lock, self._poll, self._patience = break_lock, poll, patience
        self._owner = ""
        self._turn: frozenset[str] = frozenset()
        self._held: dict[str, _Held] = {}
        self._transports: dict[str, Transport | None] = {}

    def look(self, pools: Collection[str]) -> None:
        """Raise Refused when one of ``pools`` has a lock that only a person may break."""
        for pool in sorted(pools):
            try:
                transport = self._transport(pool)
                seen = host_lock.seen(paths.pool_lock(pool))
                held = self._read(transport, pool, seen, "read the facts") if transport is not None else None
            except ConnectionFailed as error:
                self._forget(pool, error)  # it may be reachable again when the lock is needed
                continue
            if held and self._verdict(held) is host_lock.Verdict.EXPIRED and not self._break_lock:
                raise Refused(f"pool {pool} is held by another run", cause=_who(held), hint=_SILENT)

    def take(self, pools: Sequence[str], waiting: Waiting) -> None:
        """Wait until no other run holds any of ``pools``, and take their locks; raise StateFailed when that takes too long."""
        if self._turn.issuperset(pools):
            return
        self.give_back()
        for pool in sorted(pools):
            self._take(pool, waiting)
        self._turn = frozenset(pools)

    def _take(self, pool: str, waiting: Waiting) -> None:
        path, end = paths.pool_lock(pool), time.monotonic() + self._patience
        while not self._reached(pool, path):
            waiting(f"{self._owner} in pool {pool}")
            if time.monotonic() > end:
                raise StateFailed(
                    f"pool {pool} is still held by {self._owner}", hint="look what that run does, then run this again"
                )
            time.sleep(self._poll)
        transport = self._transports.get(pool)
        if transport is None:
            return
        self._held[pool] = held = _Held(transport, path)
        threading.Thread(target=self._renew, args=(pool, held), name=f"lock-{pool}", daemon=True).start()

    def check(self) -> None:
        """Raise StateFailed once another run has taken over a lock of this run."""
        for pool, held in self._held.items():
            if held.lost:
                hint = "find out who took it, then run this again"
                raise StateFailed(f"the lock of pool {pool} was taken over by another run", cause=held.lost, hint=hint)

    def give_back(self) -> None:
        """Release the locks; over a dead connection they expire by themselves."""
        self._turn = frozenset()
        while self._held:
            _, held = self._held.popitem()
            held.done.set()
            with contextlib.suppress(LodgerError):
                held.transport.run(Command(host_lock.release_script(self._me, held.path), why="release the lock of the pool"))

    def _transport(self, pool: str) -> Transport | None:
        """Return the connection to the host of the pool's router, None when there is no router or its host was given up."""
        host = self._routers.get(pool)
        if host is not None and pool not in self._transports:
            self._transports[pool] = self._own if host.name == self._own.host else self._connect(host)
        return self._transports.get(pool)

    def _forget(self, pool: str, error: ConnectionFailed) -> None:
        """Drop a lost connection, so that it is opened again; raise ``error`` for the run's own, which the run opens again."""
        if self._transports.get(pool) is self._own:
            raise error
        self._transports.pop(pool, None)

    def _none(self, pool: str, host: Host, why: str) -> None:
        self._transports[pool] = None
        self._note(f"pool {pool} is not locked against other runs: its lock is on {host.name} ({why})")

    def _reached(self, pool: str, path: str) -> bool:
        """Take the lock; return True without a lock when the host of the router cannot be reached."""
        try:
            try:
                return self._taken(pool, path)
            except ConnectionLost as error:
                self._forget(pool, error)  # it was made for the look, which may be long ago
                return self._taken(pool, path)
        except ConnectionFailed as error:
            self._forget(pool, error)
            self._none(pool, self._routers[pool], str(error))
            return True

    def _read(self, transport: Transport, pool: str, fact: Fact[T], why: str) -> T | None:
        """Return ``fact`` of the host of the pool's router, None when it is not the machine that the inventory means."""
        host = self._routers[pool]
        # On another machine nothing is written, not even a lock.
        command = facts.command([fact])
        said = transport.run(replace(command, script=only_there(host.machine_id) + command.script, why=why)).check(host.name)
        if fact in (read := facts.parse(said.stdout, host.name)):
            return read[fact]
        self._none(pool, host, "it is not the machine that the inventory means")
        return None

    def _verdict(self, held: host_lock.Attempt) -> host_lock.Verdict:
        return host_lock.judge(held, self._me, host_lock.process_start(held.owner.pid) if held.owner else 0)

    def _taken(self, pool: str, path: str) -> bool:
        """Take the lock if it is free or the rules allow to take it over; else put its holder in ``_owner``."""
        transport = self._transport(pool)
        if transport is None:
            return True
        held = self._read(transport, pool, host_lock.attempt(self._me, path), "take the lock of the pool")
        if held is None or held.taken:
            return True
        if held.failure:
            raise StateFailed(f"the lock of pool {pool} cannot be taken on {transport.host}", cause=held.failure)
        self._owner, verdict = _who(held), self._verdict(held)
        if verdict is host_lock.Verdict.ORPHAN or (verdict is host_lock.Verdict.EXPIRED and self._break_lock):
            self._note(f"taking over the lock of pool {pool} from {self._owner} ({verdict.value})")
            return transport.run(host_lock.take_over(held, self._me, path)).code == 0
        if verdict is host_lock.Verdict.EXPIRED:
            raise StateFailed(f"pool {pool} is held by another run", cause=self._owner, hint=_SILENT)
        return False

    def _renew(self, pool: str, held: _Held) -> None:
        while not held.done.wait(host_lock.RENEWAL):
            with contextlib.suppress(LodgerError):  # on a host that cannot be reached the lock expires
                said = self._renewed(pool, held)
                owner = host_lock.owner_in(said.stdout)
                if said.code == 1 and owner != self._me:  # on a full or read-only disk the lock is still ours
                    held.lost = f"{owner} holds it now" if owner else "it could not be renewed for too long"
                    return

    def _renewed(self, pool: str, held: _Held) -> Result:
        """Renew the lock, over a new connection if needed: a run that was cut off must learn that its lock was taken over."""
        command = host_lock.renew(self._me, held.path)
        try:
            return held.transport.run(command)
        except ConnectionFailed:
            if held.transport is self._own:
                raise
        self._transports[pool] = held.transport = self._connect(self._routers[pool])
        return held.transport.run(command)
