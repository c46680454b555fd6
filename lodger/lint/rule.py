"""What a rule is, and what it sees of an inventory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from lodger import capacity
from lodger.capacity import NoRoom, Prediction, Subject, advice
from lodger.capacity.checkpoint import Checkpoint
from lodger.checkout import CODE
from lodger.inventory import EngineSettings, Fleet, Host, Image, Pool, Worker


class Severity(StrEnum):
    """How grave: an error is refused before a host is contacted, a warning is told, a note explains."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the gravest."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Location:
    """Where something stands: a path in fleet.yml or in a host's file, or a line of another document."""

    loc: tuple[str | int, ...] = ()
    host: str | None = None
    document: tuple[Path, int] | None = None

    def file(self, fleet: Fleet) -> Path:
        """Return the file."""
        return self.document[0] if self.document else fleet.folder / f"{self.host or 'fleet'}.yml"

    def line(self, fleet: Fleet) -> int:
        """Return the line, that of the nearest thing around it for what is not written down."""
        return self.document[1] if self.document else int(fleet.where(*self.loc, host=self.host).rpartition(":")[2])

    def around(self, fleet: Fleet) -> list[int]:
        """Return the lines of all keys around it."""
        if self.document:
            return []
        return [Location(self.loc[:depth], self.host).line(fleet) for depth in range(1, len(self.loc))]


@dataclass(frozen=True)
class Hit:
    """What a rule found: where, one sentence why it breaks, and what to write instead."""

    place: Location
    reason: str
    instead: str


@dataclass(frozen=True)
class ServedWorker:
    """One worker with everything that follows from its settings."""

    fleet: Fleet
    host: Host
    worker: Worker
    engine: EngineSettings
    subject: Subject | None

    @property
    def pool(self) -> Pool:
        """Its pool."""
        return self.fleet.pools[self.worker.pool]

    @property
    def image(self) -> Image:
        """The engine's image."""
        return self.fleet.images[self.pool.image]

    @cached_property
    def target(self) -> Checkpoint | None:
        """The model's description, None where none is kept."""
        return capacity.describe(self.fleet, self.pool.model)

    @cached_property
    def drafter(self) -> Checkpoint | None:
        """The draft's description, None where there is no draft or no description."""
        return capacity.describe(self.fleet, self.engine.draft.model) if self.engine.draft and self.engine.draft.model else None

    @cached_property
    def outcome(self) -> Prediction | NoRoom | None:
        """What the memory admits, why it admits nothing, or None where nothing is known."""
        return self._predicted(lambda subject: subject.predict())

    @cached_property
    def most(self) -> Prediction | NoRoom | None:
        """The same with as many requests as there is room for."""
        return self._predicted(advice.most)

    def _predicted(self, predict: Callable[[Subject], Prediction]) -> Prediction | NoRoom | None:
        try:
            return predict(self.subject) if self.subject else None
        except NoRoom as error:
            return error

    @property
    def name(self) -> str:
        """How it is called in a sentence."""
        return f"worker {self.worker.name} on {self.host.name}"

    def at(self, *setting: str | int) -> Location:
        """Return where a setting of its engine stands: at the worker, if it has its own, else at the pool."""
        if setting and setting[0] in self.worker.engine:
            return Location(("workers", self.worker.name, "engine", *setting), self.host.name)
        return Location(("pools", self.pool.name, *setting))


@dataclass(frozen=True)
class View:
    """What rules see: the hosts in question, their workers, and the documents that a release and its runbooks come from."""

    fleet: Fleet
    hosts: Sequence[Host]
    workers: Sequence[ServedWorker]
    templates: Mapping[Path, str] = field(default_factory=dict)
    runbooks: Mapping[Path, str] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet, hosts: Sequence[Host], root: Path = CODE) -> View:
        """Return the view of ``hosts``, with the templates and runbooks below ``root`` and those beside the inventory."""
        workers = [
            ServedWorker(fleet, host, worker, fleet.settings(worker), capacity.subject(fleet, host, worker))
            for host in hosts
            for worker in host.workers.values()
        ]
        own = _texts(fleet.folder / "runbooks", "*.md")
        return cls(
            fleet, hosts, workers, _texts(root / "templates", "**/*.compose.yml.j2"), _texts(root / "runbooks", "*.md") | own
        )

    def images(self) -> Iterator[Image]:
        """Yield each image that the hosts use."""
        pools = {worker.pool.name: worker.pool for worker in self.workers}
        pools |= {host.router.pool: self.fleet.pools[host.router.pool] for host in self.hosts if host.router}
        names = [name for pool in pools.values() for name in (pool.image, pool.router_image) if name]
        yield from (self.fleet.images[name] for name in dict.fromkeys(names))


def _texts(folder: Path, pattern: str) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern))}


def lines(documents: Mapping[Path, str], pattern: str) -> Iterator[tuple[Location, re.Match[str]]]:
    """Yield each line of the documents in which ``pattern`` is found."""
    for path, text in documents.items():
        for number, line in enumerate(text.splitlines(), 1):
            if found := re.search(pattern, line):
                yield Location(document=(path, number)), found


@dataclass(frozen=True)
class Rule:
    """A numbered rule. ``bad`` and ``good`` are changes to an inventory in which nothing is wrong: the rule's own tests."""

    number: str
    severity: Severity
    find: Callable[[View], Iterator[Hit]]
    bad: tuple[str, ...]
    good: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return (self.find.__doc__ or "").splitlines()[0]


RULES: dict[str, Rule] = {}


def rule(
    number: str, severity: Severity, *, bad: Sequence[str], good: Sequence[str]
) -> Callable[[Callable[[View], Iterator[Hit]]], Callable[[View], Iterator[Hit]]]:
    """Register a function as the rule ``number``."""

    def register(find: Callable[[View], Iterator[Hit]]) -> Callable[[View], Iterator[Hit]]:
        assert number not in RULES, f"{number} is taken"  # noqa: S101  a mistake of the programmer
        RULES[number] = Rule(number, severity, find, tuple(bad), tuple(good))
        return find

    return register
