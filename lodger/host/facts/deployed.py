"""Lodger's own files on a host: releases, records, ledger."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lodger.errors import Refused
from lodger.host import paths
from lodger.host.facts.base import Fact

# ---------------------------------------------------------------- what is ours


@dataclass(frozen=True)
class HostFile:
    """A file of ours as it stands on the host."""

    content: str
    mode: int
    owner: str


def decode_files(text: str) -> dict[str, HostFile]:
    """Parse lines of ``mode owner base64(path) base64(content)``; raises ValueError on any other line."""
    files: dict[str, HostFile] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) == 3:
            fields.append("")
        mode, owner, path, content = fields
        try:
            raw = base64.b64decode(content, validate=True).decode("utf-8", "replace")
            files[base64.b64decode(path, validate=True).decode()] = HostFile(raw, int(mode, 8), owner)
        except binascii.Error as error:
            raise ValueError(f"not base64: {line[:80]}") from error
    return files


def files_snippet(selection: str) -> str:
    """Return sh that prints the files that the ``find`` arguments ``selection`` choose, for :func:`decode_files`.

    awk codes the paths, all of them at once: a program of its own for each part of each file would take a millisecond each.
    """
    return (
        f"find {selection} -type f -printf '%m %u %p\\n' 2>/dev/null | sort -k 3 | LC_ALL=C awk '{_BASE64}\n"
        "    { path = substr($0, length($1 $2) + 3); print $1, $2, base64(path), path }' |\n"
        "while IFS= read -r line; do\n"
        "    path=${line#* * * }\n"
        '    printf \'%s \' "${line%" $path"}"\n'
        '    base64 -w0 < "$path"\n    echo\n'
        "done"
    )


_BASE64 = r"""
    BEGIN {
        digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        for (n = 1; n < 256; n++) value[sprintf("%c", n)] = n
    }
    function base64(text,    at, bits, coded, more) {
        for (at = 1; at <= length(text); at += 3) {
            bits = value[substr(text, at, 1)] * 65536 + value[substr(text, at + 1, 1)] * 256 + value[substr(text, at + 2, 1)]
            for (more = 18; more >= 0; more -= 6) coded = coded substr(digits, int(bits / 2 ^ more) % 64 + 1, 1)
        }
        more = (3 - length(text) % 3) % 3
        return substr(coded, 1, length(coded) - more) substr("==", 1, more)
    }"""


MANIFEST = 1  # the version of a release's manifest


@dataclass(frozen=True)
class Deployed:
    """Lodger's own files on the host.

    ``current`` is the release the host is recorded to run ("" for none), ``history`` the releases in the order they
    were deployed (the last is the current one), ``stored`` all that are kept, ``links`` service -> release whose files
    it runs, ``files`` absolute path -> file for the current release, its units and the records below /var/lib/lodger,
    ``keys`` the names of the files with keys of pools, whose content is nobody's to read.
    """

    current: str
    history: tuple[str, ...]
    stored: tuple[str, ...]
    links: Mapping[str, str]
    files: Mapping[str, HostFile]
    keys: tuple[str, ...] = ()

    def manifest(self, release: str) -> dict[str, Any]:
        """Return the manifest of a stored release; raise Refused when it has none, or one that is no manifest."""
        path = _manifest(release)
        try:
            data = json.loads(self.files[path].content)
        except (KeyError, ValueError) as error:
            raise self.no_manifest(release, str(error) if path in self.files else "it is not there") from error
        if not isinstance(data, dict):
            raise self.no_manifest(release, "it is not a JSON object")
        if (version := data.get("version", MANIFEST)) != MANIFEST:
            raise self.no_manifest(release, f"it has version {version}, this Lodger knows {MANIFEST}")
        return data

    def no_manifest(self, release: str, why: str) -> Refused:
        """Return the refusal to work with a release whose manifest is missing or says something else."""
        path = _manifest(release)
        afresh = f"remove {path.rpartition('/')[0]} and {paths.CURRENT} to begin afresh"
        over = f"take the line {release} out of {paths.HISTORY} to pass it over"
        hint = f"put the file back, or {afresh if release == self.current else over}"
        return Refused(f"release {release} has no readable manifest", cause=f"{path}: {why}", hint=hint)

    @property
    def standing(self) -> tuple[object, ...]:
        """All that says what the host is to run: record, links, units, and which neighbours are owed."""
        decisive = (f"{paths.UNITS}/", f"{paths.REPLACED}/")
        files = {path: file for path, file in self.files.items() if path.startswith(decisive)}
        return self.current, self.history, dict(self.links), files

    def record(self, name: str) -> str | None:
        """Return the content of the file ``name`` below /var/lib/lodger, None when there is none."""
        found = self.files.get(f"{paths.VAR}/{name}")
        return found.content if found is not None else None


def _manifest(release: str) -> str:
    return f"{paths.RELEASES}/{release}/manifest.json"


def _deployed(text: str) -> Deployed:
    head, _, rest = text.partition("@files\n")
    values: dict[str, list[str]] = {}
    for line in head.splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value)
    links = dict(item.split(" ", 1) for item in values.get("link", []))
    return Deployed(
        values.get("current", [""])[0].rpartition("/")[2],
        tuple(value for value in values.get("history", []) if value),
        tuple(value for value in values.get("stored", []) if value),
        {name: target.split("/")[-2] for name, target in links.items() if target.startswith(f"{paths.RELEASES}/")},
        decode_files(rest),
        tuple(value for value in values.get("key", []) if value),
    )


# What is no record is not read: a driver's packages take hundreds of MB.
_UNREAD = (paths.DRIVER_CACHE, paths.FETCH, paths.JOURNAL, f"{paths.LOCK}*", paths.SHARE, f"{paths.LEDGER}*")

DEPLOYED = Fact(
    "deployed",
    rf"""echo "current=$(readlink {paths.CURRENT})"
sed 's/^/history=/' {paths.HISTORY} 2>/dev/null
for each in {paths.RELEASES}/*; do
    case ${{each##*/}} in *[!0-9a-f]*) ;; *) echo "stored=${{each##*/}}" ;; esac
done
find {paths.SERVICES} -mindepth 1 -maxdepth 1 -type l -printf 'link=%f %l\n' 2>/dev/null
for each in {paths.KEYS}/*; do
    [ ! -e "$each" ] && [ ! -L "$each" ] || echo "key=${{each##*/}}"
done
echo @files
"""
    + files_snippet(
        f"{paths.RELEASES} {paths.UNITS} {paths.VAR} -maxdepth 3 "
        rf"\( -path '{paths.UNITS}/*' ! -path '{paths.UNITS}/{paths.PREFIX}*' "
        + " ".join(f"-o -path '{path}'" for path in _UNREAD)
        + r" \) -prune -o -size -1024k"
    ),
    _deployed,
    takes=25,
)

# An empty file is no missing one: what it said of the things to put back is lost.
LEDGER = Fact(
    "ledger",
    f"f={paths.LEDGER}; [ ! -e $f ] || {{ [ -s $f ] && cat $f || echo 'nothing in it'; }}",
    lambda text: text.strip(),
)
