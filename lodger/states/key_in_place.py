"""The key of a pool is on the host, readable by root only, and so are the keys that earlier releases need."""

from __future__ import annotations

from lodger.host import paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Facts
from lodger.host.facts.keys import held_keys_fact, key_in_use
from lodger.release.api_keys import ApiKey
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.registry import state
from lodger.states.target import Target


@state("key_in_place", each="key")
class KeyInPlace(State):
    """The file with the header that a pool's workers and routers require, and the link by which curl on the host finds it.

    The name of the file has the mark of the key, and each release uses that name: a rollback uses its own key again.
    """

    def __init__(self, key: ApiKey) -> None:
        """Take the key; one without a secret must already be on the host."""
        self.name = f"key_in_place({key.pool})"
        self._key, self._link = key, paths.key(key.pool)
        self._fact = held_keys_fact(key.pool)
        self.facts = (self._fact,)

    @classmethod
    def of(cls, target: Target, item: ApiKey) -> KeyInPlace:
        """Return the state for ``item``."""
        del target
        return cls(item)

    def _path(self, mark: str) -> str:
        return paths.key(self._key.pool, mark)

    def _stored(self, read: Facts) -> str:
        """Return what is wrong with the file of this key."""
        mark, access = read[self._fact].get(self._key.mark, ("", ""))
        if mark != self._key.mark:
            return f"the host has {'another' if key_in_use(read[self._fact]) else 'no'} key of pool {self._key.pool}"
        return "" if access == "600 root" else f"{self._path(mark)} can be read by others"

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: there is no key, another one, or one that others can read."""
        wrong = self._stored(read)
        return wrong or (
            "" if key_in_use(read[self._fact]) == self._key.mark else f"pool {self._key.pool} still uses another key"
        )

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when the key of an earlier release is no longer on the host."""
        if self._key.secret is not None or not self._stored(read):
            return []
        what = f"the key of pool {self._key.pool} that the earlier release needs is not on the host"
        hint = "check out the git revision of that release, with its key file, then run ./ops deploy from there"
        return [Blocker(what, f"{self._path(self._key.mark)} is missing or holds another key", hint)]

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that write the key and link to it. The key that was in use stays, for an undo and a rollback."""
        held = read[self._fact]
        keep, path = key_in_use(held), self._path(self._key.mark)
        commands = []
        if keep and keep not in held:  # one that was written before keys had names
            commands.append(run("cp", "-pL", self._link, self._path(keep), why="keep the key that was in use"))
        if self._stored(read):
            new = quote([f"{path}.new"])
            script = f"umask 077 && mkdir -p {paths.KEYS} && cat > {new} && mv -f {new} {quote([path])}"
            commands.append(Command(script, why=f"write the key of pool {self._key.pool}", stdin=self._key.header))
        return [*commands, self._use(self._key.mark)]

    def _use(self, mark: str) -> Command:
        new = f"{self._link}.new"
        script = f"{quote(['ln', '-sfn', self._path(mark), new])} && {quote(['mv', '-fT', new, self._link])}"
        return Command(script, why=f"use this key of pool {self._key.pool}")

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the commands that use the earlier key again, or remove link and file."""
        if before[self._fact] == now[self._fact]:
            return NoUndo("the key is as it was")
        was = key_in_use(before[self._fact])
        extra = [self._path(mark) for mark in now[self._fact] if mark and mark not in {was, *before[self._fact]}]
        back = self._use(was) if was else run("rm", "-f", self._link, why="use no key")
        return [back, Command(f"{quote(['rm', '-f', *extra])}; {paths.REMOVE_NO_KEYS}", why="remove the key")]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: the key in use is not the earlier one."""
        return (
            ""
            if key_in_use(before[self._fact]) == key_in_use(now[self._fact])
            else f"{self._link} does not hold the earlier key"
        )
