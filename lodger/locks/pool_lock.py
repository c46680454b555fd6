"""A run's turns in its pools, kept from the runs of other commands by a lock on the host of each pool's router.

Within one command hosts take turns in its memory (``gate``). Whoever holds a pool's lock waits for nobody else: it is taken
after the lock of the run's own host, and several of them together in the order of their names, so that no two runs
wait for each other.
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

_PATIENCE = 7200.0  # seconds: the longest stop, start and smoke of a worker, for three who are first
_POLL = 5.0

_SILENT = "its owner is silent for longer than it may be; --break-lock takes over"

T = TypeVar("T")

Waiting = Callable[[str], None]
"""Called with whom is waited for, again and again; raises to give up."""


def _who(held: host_lock.Attempt) -> str:
    return str(held.owner) if held.owner else "somebody who wrote no name"


@dataclass
class _Held:
    """The lock of one pool since we took it; ``lost`` says how it came to be ours no longer, "" while it is."""

    transport: Transport
    path: str
    done: threading.Event = field(default_factory=threading.Event)
    lost: str = ""


class PoolLock:
    """The turns of one run: in the pools of what it has stopped at a time.

    ``own`` is the run's connection to its host, ``routers`` pool -> host of its router, to which ``connect`` opens another. A
    pool without a router has no lock; of one whose router's host cannot be reached ``note`` is told that it has none now.
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
        """Raise Refused where a run that is to take its turn in ``pools`` would meet a lock that only a person may break."""
        for pool in sorted(pools):
            try:
                transport = self._transport(pool)
                seen = host_lock.seen(paths.pool_lock(pool))
                held = self._read(transport, pool, seen, "read the facts") if transport is not None else None
            except ConnectionFailed as error:
                self._forget(pool, error)  # it may be there again when the turn has come
                continue
            if held and self._verdict(held) is host_lock.Verdict.EXPIRED and not self._break_lock:
                raise Refused(f"another run has its turn in pool {pool}", cause=_who(held), hint=_SILENT)

    def take(self, pools: Sequence[str], waiting: Waiting) -> None:
        """Wait until no other run has its turn in any of ``pools``; raise StateFailed when that takes too long."""
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
                raise StateFailed(f"{self._owner} has its turn in pool {pool} for too long", hint="look what that run does")
            time.sleep(self._poll)
        transport = self._transports.get(pool)
        if transport is None:
            return
        self._held[pool] = held = _Held(transport, path)
        threading.Thread(target=self._renew, args=(pool, held), name=f"lock-{pool}", daemon=True).start()

    def check(self) -> None:
        """Raise StateFailed once somebody else has taken a turn of this run."""
        for pool, held in self._held.items():
            if held.lost:
                hint = "find out who took it, then run this again"
                raise StateFailed(f"the turn in pool {pool} was taken by somebody else", cause=held.lost, hint=hint)

    def give_back(self) -> None:
        """Let others have their turn; over a dead connection the lock expires by itself."""
        self._turn = frozenset()
        while self._held:
            _, held = self._held.popitem()
            held.done.set()
            with contextlib.suppress(LodgerError):
                held.transport.run(Command(host_lock.release_script(self._me, held.path), why="give the pool's turn back"))

    def _transport(self, pool: str) -> Transport | None:
        """Return the connection to the host of the pool's router, None where it has none or was given up."""
        host = self._routers.get(pool)
        if host is not None and pool not in self._transports:
            self._transports[pool] = self._own if host.name == self._own.host else self._connect(host)
        return self._transports.get(pool)

    def _forget(self, pool: str, error: ConnectionFailed) -> None:
        """Have a connection that was lost made anew; the own one is the run's to make again, so raise ``error``."""
        if self._transports.get(pool) is self._own:
            raise error
        self._transports.pop(pool, None)

    def _none(self, pool: str, host: Host, why: str) -> None:
        self._transports[pool] = None
        self._note(f"nobody else is kept out of pool {pool} meanwhile: its lock is on {host.name} ({why})")

    def _reached(self, pool: str, path: str) -> bool:
        """Take the lock if that may be; without it when the host of the router cannot be reached."""
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
        """Return ``fact`` of the host of the pool's router; None where that is another machine than the one that is meant."""
        host = self._routers[pool]
        # There nothing is written, not even a lock.
        command = facts.command([fact])
        said = transport.run(replace(command, script=only_there(host.machine_id) + command.script, why=why)).check(host.name)
        if fact in (read := facts.parse(said.stdout, host.name)):
            return read[fact]
        self._none(pool, host, "it is another machine than the recorded one")
        return None

    def _verdict(self, held: host_lock.Attempt) -> host_lock.Verdict:
        return host_lock.judge(held, self._me, host_lock.process_start(held.owner.pid) if held.owner else 0)

    def _taken(self, pool: str, path: str) -> bool:
        """Take the lock if nobody has it, or over where the rules allow it; say in ``_owner`` who has it."""
        transport = self._transport(pool)
        if transport is None:
            return True
        held = self._read(transport, pool, host_lock.attempt(self._me, path), "take the pool's turn")
        if held is None or held.taken:
            return True
        if held.failure:
            raise StateFailed(f"the turn in pool {pool} cannot be taken on {transport.host}", cause=held.failure)
        self._owner, verdict = _who(held), self._verdict(held)
        if verdict is host_lock.Verdict.ORPHAN or (verdict is host_lock.Verdict.EXPIRED and self._break_lock):
            self._note(f"taking over the turn of {self._owner} in pool {pool} ({verdict.value})")
            return transport.run(host_lock.take_over(held, self._me, path)).code == 0
        if verdict is host_lock.Verdict.EXPIRED:
            raise StateFailed(f"another run has its turn in pool {pool}", cause=self._owner, hint=_SILENT)
        return False

    def _renew(self, pool: str, held: _Held) -> None:
        while not held.done.wait(host_lock.RENEWAL):
            with contextlib.suppress(LodgerError):  # of a host that cannot be reached it expires
                said = self._renewed(pool, held)
                owner = host_lock.owner_in(said.stdout)
                if said.code == 1 and owner != self._me:  # of a disk that takes nothing ours comes back
                    held.lost = f"{owner} has it now" if owner else "no renewal got through for too long"
                    return

    def _renewed(self, pool: str, held: _Held) -> Result:
        """Renew the lock; whoever was cut off for long has to hear that it was taken, and nobody else connects again."""
        command = host_lock.renew(self._me, held.path)
        try:
            return held.transport.run(command)
        except ConnectionFailed:
            if held.transport is self._own:
                raise
        self._transports[pool] = held.transport = self._connect(self._routers[pool])
        return held.transport.run(command)
