"""Which keys of a pool a host has; the keys themselves stay there."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lodger.host import paths
from lodger.host.command import quote
from lodger.host.facts.base import Fact

HeldKeys = Mapping[str, tuple[str, str]]
"""Mark of a stored key ("" for the link to the one in use) -> mark of what it holds, and who may read it (mode and owner)."""


def held_keys_fact(pool: str) -> Fact[HeldKeys]:
    """Return the fact which keys a host has for ``pool``; they themselves stay there."""
    path = quote([paths.key(pool)])
    mark = "{ printf 'lodger '; sed -n 's/^Authorization: Bearer //p' \"$file\" | tr -d '\\n'; } | sha256sum | cut -c1-8"
    snippet = f"""for file in {path} {path}.*; do
    [ -f "$file" ] || continue
    printf '%s %s %s\n' "$({mark})" "$(stat -L -c '%a %U' "$file")" "${{file#{path}}}"
done"""

    def parse(text: str) -> HeldKeys:
        held = {}
        for line in text.splitlines():
            mark, mode, owner, *name = line.split()
            if not name or re.fullmatch(r"\.[0-9a-f]{8}", name[0]):  # not what is just being written
                held["".join(name).removeprefix(".")] = (mark, f"{mode} {owner}")
        return held

    return Fact(f"key {pool}", snippet, parse)


def key_in_use(held: HeldKeys) -> str:
    """Return the mark of the key that the host asks with, "" for none."""
    return held.get("", ("", ""))[0]
