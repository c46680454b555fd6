"""The key of a pool stands on the host, readable by root alone."""

from __future__ import annotations

from lodger import paths
from lodger.command import Command, quote
from lodger.facts import Fact, Facts
from lodger.keys import ApiKey
from lodger.states.base import NoUndo, State


def _key_fact(pool: str) -> Fact[tuple[str, str]]:
    """Return the fact which key a host has for ``pool`` (its mark), and who may read it (mode and owner); "" for none."""
    path = quote([f"{paths.KEYS}/{pool}"])
    mark = "{ printf 'lodger '; sed -n 's/^Authorization: Bearer //p' " + path + " | tr -d '\\n'; } | sha256sum | cut -c1-8"
    snippet = f"if [ -f {path} ]; then\n    stat -c '%a %U' {path}\n    {mark}\nfi"

    def parse(text: str) -> tuple[str, str]:
        lines = text.split("\n")
        return (lines[1], lines[0]) if len(lines) > 1 else ("", "")

    return Fact(f"key {pool}", snippet, parse)


class KeyInPlace(State):
    """The file with the header that a pool's workers and routers ask for. Their containers read it, and curl on the host."""

    def __init__(self, key: ApiKey) -> None:
        """Take the key."""
        self.name = f"key_in_place({key.pool})"
        self._key, self._path = key, f"{paths.KEYS}/{key.pool}"
        self._fact = _key_fact(key.pool)
        self.facts = (self._fact,)

    def missing(self, read: Facts) -> str:
        """Return that there is no key, another one, or one that others can read."""
        mark, access = read[self._fact]
        if not mark:
            return f"the host has no key of pool {self._key.pool}"
        if mark != self._key.mark:
            return f"the host has another key of pool {self._key.pool}"
        return "" if access == "600 root" else f"{self._path} can be read by others"

    def _kept(self, mark: str) -> str:
        return f"{self._path}.{mark}"

    def act(self, read: Facts) -> list[Command]:
        """Return the writing; a key that was there before is kept beside it for an undo."""
        mark, _ = read[self._fact]
        keep = f"cp -p {quote([self._path, self._kept(mark)])} && " if mark and mark != self._key.mark else ""
        new = quote([f"{self._path}.new"])
        script = f"umask 077 && mkdir -p {paths.KEYS} && {keep}cat > {new} && mv -f {new} {quote([self._path])}"
        return [Command(script, why=f"write the key of pool {self._key.pool}", stdin=self._key.header)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what puts the earlier key back, or removes the file."""
        mark, _ = before[self._fact]
        if mark == now[self._fact][0]:
            return NoUndo("the key is as it was")
        if mark:
            return [Command(f"mv -f {quote([self._kept(mark), self._path])}", why="put the earlier key back")]
        return [Command(f"rm -f {quote([self._path])} && rmdir --ignore-fail-on-non-empty {paths.KEYS}", why="remove the key")]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that the key is not the earlier one."""
        return "" if before[self._fact][0] == now[self._fact][0] else f"{self._path} does not hold the earlier key"
