"""What can be read of a host. A fact is a read-only shell snippet and a pure parser; many are read in one round trip."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lodger.errors import LodgerError
from lodger.host.command import Command, quote

T = TypeVar("T")

_MARK = "@@lodger-fact"


class Unreadable(LodgerError):
    """A fact could not be read, or says something its parser does not understand."""


@dataclass(frozen=True)
class Fact(Generic[T]):
    """One thing to know of a host.

    ``snippet`` is POSIX sh that changes nothing, run as root; ``parse`` turns what it prints into a value and raises
    ValueError on what it does not understand. Two facts with the same name are the same fact.
    """

    name: str
    snippet: str = field(compare=False)
    parse: Callable[[str], T] = field(compare=False)


class Facts:
    """Values of facts as they were at one moment. Reading one that failed raises Unreadable, and only then."""

    def __init__(self, sections: Mapping[str, tuple[int, str]], host: str = "") -> None:
        self.sections = dict(sections)
        self.host = host
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, fact: Fact[T]) -> T:
        if fact.name not in self._parsed:
            if fact.name not in self.sections:
                raise Unreadable(f"{fact.name} was not read", host=self.host)
            code, text = self.sections[fact.name]
            if code != 0:
                lines = text.strip().splitlines()
                raise Unreadable(
                    f"{fact.name} could not be read", cause=lines[-1] if lines else f"exit code {code}", host=self.host
                )
            try:
                self._parsed[fact.name] = fact.parse(text)
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise Unreadable(
                    f"{fact.name} reads strangely", cause=f"{error}: {text.strip()[:200]!r}", host=self.host
                ) from error
        value: T = self._parsed[fact.name]
        return value

    def __contains__(self, fact: Fact[Any]) -> bool:
        return fact.name in self.sections

    def replaced(self, fact: Fact[Any], text: str, code: int = 0) -> Facts:
        """Return these facts as if ``fact`` had printed ``text`` and ended with ``code``."""
        other = Facts({**self.sections, fact.name: (code, text)}, self.host)
        other._parsed = {name: value for name, value in self._parsed.items() if name != fact.name}
        return other

    def dump(self) -> str:
        """Return the raw readings as JSON, for the ledger and the journal."""
        return json.dumps(self.sections)

    def over(self, later: Facts) -> Facts:
        """Return these, and of what was not read then what ``later`` says."""
        return Facts({**later.sections, **self.sections}, self.host)

    @staticmethod
    def load(text: str, host: str = "") -> Facts:
        """Return the facts that :meth:`dump` wrote; raise ValueError on anything else."""
        data = json.loads(text)
        return Facts({name: (int(code), str(said)) for name, (code, said) in data.items()}, host)


def script(facts: Iterable[Fact[Any]]) -> str:
    """Return one sh script that reads all ``facts``, each once, however often it is asked for.

    The marks between the readings carry a key that the host makes up for this one script: whatever a colleague's process
    is called, or a log says, is never taken for the end of a reading.
    """
    parts = [
        f'printf "{_MARK} $lodger_key begin %s\\n" {quote([fact.name])}\n(\n{fact.snippet}\n) 2>&1 </dev/null\n'
        f'printf "\\n{_MARK} $lodger_key end %d\\n" $?'
        for fact in dict.fromkeys(facts)
    ]
    return "\n".join([f'lodger_key=$(cat /proc/sys/kernel/random/uuid)\necho "{_MARK}s $lodger_key"', *parts])


def command(facts: Iterable[Fact[Any]], timeout: float = 90.0) -> Command:
    """Return the command that reads ``facts`` in one round trip."""
    return Command(script(facts), why="read the facts", timeout=timeout, output_limit=32 * 1024 * 1024)


def parse(text: str, host: str = "") -> Facts:
    """Return the facts in the output of :func:`script`; a section that is cut off is left out."""
    sections: dict[str, tuple[int, str]] = {}
    key = re.search(rf"^{_MARK}s (\S+)$", text, re.MULTILINE)
    if key is not None:
        mark = re.escape(f"{_MARK} {key[1]}")
        pattern = rf"^{mark} begin (?P<name>[^\n]*)\n(?P<body>.*?)\n^{mark} end (?P<code>\d+)\n"
        for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
            sections[match["name"]] = (int(match["code"]), match["body"])
    return Facts(sections, host)
