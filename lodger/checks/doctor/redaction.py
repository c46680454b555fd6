"""Take out of a text what must not leave the site: names, addresses, ids, secrets.

Each value becomes a placeholder, ``<host-1>``, ``<user-2>``; the same value gets the same one throughout a text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

_SECRET = re.compile(
    r"""(?ix)
    ( (?:[\w-]*(?:api-?_?key|token|secret|passw(?:or)?d|passphrase|credential|auth)[\w-]*) (?:\s*[=:]\s*|\s+) (?:bearer\s+)?
    | \bbearer\s+ | (?<=://)(?=[^\s/@]*@) )
    ("[^"]*" | '[^']*' | [^\s"'@]+)"""
)
_KNOWN_BY_FORM = (
    ("mail", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ("uuid", r"(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("mac", r"(?<![\w:])[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?![\w:])"),
    # An image's digest is public.
    ("id", r"(?<!sha256:)(?<![0-9a-z])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-z])"),
    ("serial", r"(?<=serial: )\S+|(?<=serial=)\S+|(?<=serial number: )\S+"),
    ("user", r"(?<=/home/)[^/\s]+"),
    ("address", r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)|(?<![\w:.])[0-9a-f:]*(?::[0-9a-f]*){2}(?:\.\d+){0,3}(?![\w:])"),
)  # fmt: skip
_LOCAL = ("127.", "0.0.0.0", "::", "::1")  # noqa: S104  addresses to keep; nothing listens here


def redacted(text: str, known: Mapping[str, Iterable[str]]) -> str:
    """Return ``text`` with placeholders for ``known`` words, by kind (``host``, ``user``), and for values known by their form.

    A known word is found as a whole word in upper or lower case, a host's with its domain.
    """
    numbers: dict[tuple[str, str], str] = {}
    counts: dict[str, int] = {}

    def placeholder(kind: str, value: str) -> str:
        key = kind, value.lower()
        if key not in numbers:
            counts[kind] = counts.get(kind, 0) + 1
            numbers[key] = f"<{kind}-{counts[kind]}>"
        return numbers[key]

    kinds = {word.lower(): kind for kind, words in known.items() for word in words if word}
    parts = [f"(?P<known>{_word(kinds)})"] if kinds else []
    parts += [f"(?P<{kind}>{form})" for kind, form in _KNOWN_BY_FORM]
    pattern = re.compile("|".join(parts), re.IGNORECASE)

    def replace(match: re.Match[str]) -> str:
        kind, value = str(match.lastgroup), match[0]
        if kind == "known":
            word = next((word for word in _longest(kinds) if value.lower().startswith(word)), value)
            return placeholder(kinds.get(word, "name"), word)
        if kind == "address" and (value.startswith(_LOCAL[0]) or value in _LOCAL or not _is_address(value)):
            return value
        return placeholder(kind, value)

    # Secrets first: a part of one may look like a name.
    return pattern.sub(replace, _SECRET.sub(lambda match: f"{match[1]}<secret>", text))


def _longest(words: Iterable[str]) -> list[str]:
    return sorted(words, key=len, reverse=True)


def _word(kinds: Mapping[str, str]) -> str:
    """Return the pattern of the known words, the longest first, so that a name is not cut by a shorter one."""
    domain = r"(?:\.(?!yml\b)[a-z0-9-]+)*"
    whole = [re.escape(word) + (domain if kinds[word] == "host" else "") for word in _longest(kinds)]
    return rf"(?<![a-z0-9])(?:{'|'.join(whole)})(?![a-z0-9])"


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True
