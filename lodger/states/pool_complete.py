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
    """The router lists the workers of its pool that serve, all of them and no others, and sends requests to some.

    When no worker serves, for example because all are paused, it need not send requests.
    """

    def __init__(self, roll: RouterMembers) -> None:
        """Take the members that the router should list."""
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
        """Return the URLs that are listed and should not be, and those that serve and are not listed."""
        listed = read[self._rotation][self._roll.router]
        if listed is None or isinstance(listed, OtherKey):
            return [], []
        return sorted(listed.keys() - self._names.keys()), [url for url in self._serving(read) if url not in listed]

    def _serving(self, read: Facts) -> list[str]:
        return [url for url in self._names if read[self._identities][url]]

    def missing(self, read: Facts) -> str:
        """Return the first listed URL that is not a worker, the first worker not listed, or that no worker is healthy."""
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
        """Return the workers that require another key: they would refuse the router."""
        return self._roll.pool_key.conflicts(read, read[self._identities], self._roll.members)

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that remove and add workers in the router's list."""
        strangers, absent = self._differs(read)
        router, key = self._roll.router, self._roll.pool_key.header
        return [
            *(self._roll.api.leave(RouterEntry(router, url), key) for url in strangers),
            *(self._roll.api.join(RouterEntry(router, url), key) for url in absent),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave it: the list is in the router's process only, and the states of the workers take them out."""
        del before, now
        return NoUndo("the next deploy of the router writes its list again")
