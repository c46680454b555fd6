"""A model's folder on a host."""

from __future__ import annotations

from dataclasses import dataclass

from lodger.host.command import quote
from lodger.host.facts.base import Fact


@dataclass(frozen=True)
class Folder:
    """A model's folder: whether it has a config.json, the bytes of its files as their sizes say, and whether they are whole.

    ``mixed`` where a fetch was cut short while it put one revision in the place of another. ``lost`` counts the files that a
    fetch recorded and that are not there in their size, None where it recorded nothing.
    """

    config: bool
    size: int
    mixed: bool = False
    lost: int | None = None


def folder_fact(path: str) -> Fact[Folder]:
    """Return the fact of one model folder."""
    name = quote([path])

    def parse_folder(text: str) -> Folder:
        config, mixed, size, *lost = text.split()
        return Folder(config == "yes", int(size), mixed == "yes", int(lost[0]) if lost else None)

    return Fact(
        f"folder {path}",
        # %.0f: mawk's %d ends at 2 GiB.
        f"""[ -f {name}/config.json ] && echo yes || echo no
[ -e {name}/.lodger/placing ] && echo yes || echo no
find {name} -path {name}/.lodger -prune -o -type f -printf '%s\\n' 2>/dev/null |
    awk '{{n += $1}} END {{printf "%.0f\\n", n}}'
[ ! -f {name}/.lodger/manifest ] || {{
    sed '/^#/d; s/^/recorded\\t/' {name}/.lodger/manifest
    find {name} -path {name}/.lodger -prune -o -type f -printf 'there\\t%s\\t%P\\n' 2>/dev/null
}} | awk -F '\\t' '$1 == "recorded" {{ size[$5] = $3 }} $1 == "there" && ($3 in size) && size[$3] == $2 {{ delete size[$3] }}
    END {{ n = 0; for (path in size) n++; print n }}'""",
        parse_folder,
    )
