"""The router lists the workers of its pool that serve."""

from __future__ import annotations

from typing import Any

from lodger.engines.pool import OtherKey, RouterEntry
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.release.service import Service
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.pool_place import RouterMembers
from lodger.states.registry import state
from lodger.states.target import Target


@state("pool_complete", each="router")
class PoolComplete(State):
    """The router lists the workers of its pool that serve, all of them and nobody else, and sends requests to some.

    Its file says the same. With nobody who serves, all of them paused say, there is nobody to send requests to.
    """

    def __init__(self, roll: RouterMembers) -> None:
        """Take who is to stand behind the router."""
        self.name = "pool_complete"
        self._roll = roll
        self._names = {member.url: member.name for member in roll.members}
        self._rotation = roll.api.rotation_fact([roll.router], roll.pool_key.header)
        self._identities = roll.api.identities_fact(list(self._names), roll.pool_key.header)
        self.facts: tuple[Fact[Any], ...] = (self._rotation, self._identities, *roll.pool_key.facts)
        self.deadline = 60.0

    @classmethod
    def of(cls, target: Target, item: Service) -> PoolComplete:
        """Return the state for ``item``."""
        return cls(RouterMembers.of(target, item))

    def _differs(self, read: Facts) -> tuple[list[str], list[str]]:
        """Return who is listed and should not be, and who serves and is not listed."""
        listed = read[self._rotation][self._roll.router]
        if listed is None or isinstance(listed, OtherKey):
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
            return f"{self._roll.router} lists {strangers[0]}, which is not a worker of its pool"
        if absent:
            return f"{self._names[absent[0]]} serves, but {self._roll.router} does not list it"
        listed = read[self._rotation][self._roll.router]
        if isinstance(listed, OtherKey):
            return f"{self._roll.router} uses another key"
        if listed is not None and self._serving(read) and not any(listed.values()):
            return f"{self._roll.router} sends requests to no worker"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return the workers that ask for another key: the router would get nothing from them."""
        return self._roll.pool_key.conflicts(read, read[self._identities], self._roll.members)

    def act(self, read: Facts) -> list[Command]:
        """Return who leaves and who joins."""
        strangers, absent = self._differs(read)
        router, key = self._roll.router, self._roll.pool_key.header
        return [
            *(self._roll.api.leave(RouterEntry(router, url), key) for url in strangers),
            *(self._roll.api.join(RouterEntry(router, url), key) for url in absent),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it: the list belongs to the router's process, and its workers decide for themselves when they leave."""
        del before, now
        return NoUndo("the next deploy of the router writes its list again")
