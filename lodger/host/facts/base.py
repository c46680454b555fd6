"""What can be read of a host. A fact is a read-only shell snippet and a pure parser; many are read in one round trip."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lodger.errors import LodgerError
from lodger.host.command import Command, quote

T = TypeVar("T")

_MARK = "@@lodger-fact"
# Where files are in memory: the first of them that takes a folder, on the host, has the lanes' files.
_MEMORY = ("/run", "/dev/shm")  # noqa: S108  the folder has a random name, and nobody else may look into it
_LANES = "3456789"  # the numbers that sh has for files: one for each lane in which facts are read side by side
_WORTH = 20  # ms that reading side by side has to save before it is worth its own


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
    # About how many ms it takes on a quiet host: what takes long begins first.
    takes: int = field(default=5, compare=False)
    # Read by itself and before all others, whose readings are to come after what this one tells or does.
    first: bool = field(default=False, compare=False)


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
                    f"{fact.name} was read, but its form is not known", cause=f"{error}: {text.strip()[:200]!r}", host=self.host
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

    Those that are to be ``first`` are read one after another, the others side by side: a lane of them writes into a file
    that has lost its name before anything is in it, so that nothing is left behind however the script ends. Where no such
    file can be made, or one can not be filled, its lane is read without.

    The marks around the readings carry a key that the host makes up for this one script: whatever a colleague's process
    is called, or a log says, is never taken for the end of a reading.
    """
    wanted = list(dict.fromkeys(facts))
    parts = [f'lodger_key=$(cat /proc/sys/kernel/random/uuid)\necho "{_MARK}s $lodger_key"']
    parts += [_reading(fact) for fact in wanted if fact.first]
    others = [fact for fact in wanted if not fact.first]
    times = [fact.takes for fact in others]
    if sum(times) - max(times, default=0) < _WORTH:
        return "\n".join([*parts, *map(_reading, others)])
    lanes = _spread(others)
    for number, lane in lanes.items():
        body = "\n".join(_reading(fact, " || return") for fact in lane)
        parts.append(f"lodger_lane{number}() {{\n{body}\n}}")
    return "\n".join([*parts, _side_by_side("".join(lanes))])


def _reading(fact: Fact[Any], cut: str = "") -> str:
    """Return sh that prints one fact between its marks; ``cut`` is what to do when that cannot be written."""
    return (
        f'printf "\\n{_MARK} $lodger_key begin %s\\n" {quote([fact.name])}{cut}\n(\n{fact.snippet}\n) 2>&1 </dev/null\n'
        f'printf "\\n{_MARK} $lodger_key end %d\\n" $?{cut}'
    )


def _spread(facts: Sequence[Fact[Any]]) -> dict[str, list[Fact[Any]]]:
    """Return lane -> facts, so that all lanes take about as long; the longest come first."""
    lanes: dict[str, list[Fact[Any]]] = {number: [] for number in _LANES[: len(facts)]}
    load = dict.fromkeys(lanes, 0)
    for fact in sorted(facts, key=lambda fact: -fact.takes):
        number = min(load, key=lambda one: (load[one], one))
        lanes[number].append(fact)
        load[number] += fact.takes
    return lanes


def _side_by_side(numbers: str) -> str:
    """Return sh that runs the functions of all lanes side by side and prints what each wrote.

    Only the end of a lane itself is waited for: what hangs may leave behind a process that keeps the file open.
    """
    words = " ".join(numbers)
    opened = " ".join(f'{number}<>"$lodger_dir/{number}"' for number in numbers)
    closed = " ".join(f"{number}>&-" for number in numbers)
    return f"""lodger_dir= lodger_begun= lodger_whole= lodger_again='{words}'
trap 'rm -rf "$lodger_dir"; exit 1' HUP INT TERM
for lodger_at in {" ".join(_MEMORY)}; do
    lodger_dir=$(umask 077 && mktemp -d "$lodger_at/lodger-facts.XXXXXX" 2>/dev/null) && break
done
if [ -n "$lodger_dir" ] && (cd "$lodger_dir" && for file in {words}; do true > $file || exit; done) 2>/dev/null; then
    exec {opened}
    lodger_again=
fi
[ -z "$lodger_dir" ] || rm -rf "$lodger_dir"
trap - HUP INT TERM
if [ -z "$lodger_again" ]; then
    for lodger_lane in {words}; do
        lodger_lane$lodger_lane >&$lodger_lane 2>/dev/null {closed} &
        lodger_begun="$lodger_begun $lodger_lane:$!"
    done
    for lodger_lane in $lodger_begun; do
        if wait "${{lodger_lane#*:}}" 2>/dev/null; then lodger_whole="$lodger_whole /proc/self/fd/${{lodger_lane%:*}}"
        else lodger_again="$lodger_again ${{lodger_lane%:*}}"; fi
    done
    [ -z "$lodger_whole" ] || cat $lodger_whole || lodger_again='{words}'
fi
for lodger_lane in $lodger_again; do lodger_lane$lodger_lane; done"""


def command(facts: Iterable[Fact[Any]], timeout: float = 90.0) -> Command:
    """Return the command that reads ``facts`` in one round trip."""
    return Command(script(facts), why="read the facts", timeout=timeout, output_limit=32 * 1024 * 1024)


def parse(text: str, host: str = "") -> Facts:
    """Return the facts in the output of :func:`script`; a section that is cut off is left out."""
    sections: dict[str, tuple[int, str]] = {}
    key = re.search(rf"^{_MARK}s (\S+)$", text, re.MULTILINE)
    if key is not None:
        mark = re.escape(f"{_MARK} {key[1]}")
        name, start = None, 0
        for match in re.finditer(rf"^{mark} (?:begin (?P<name>[^\n]*)|end (?P<code>\d+))\n", text, re.MULTILINE):
            if match["code"] is None:
                name, start = match["name"], match.end()
            elif name is not None:
                sections[name] = (int(match["code"]), text[start : match.start() - 1])
                name = None
    return Facts(sections, host)
