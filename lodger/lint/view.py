"""What rules see of an inventory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from lodger import capacity
from lodger.capacity import NoRoom, Prediction, Subject
from lodger.capacity.checkpoint import Checkpoint
from lodger.checkout import CODE
from lodger.inventory import EngineSettings, Fleet, Host, Image, Pool, Worker
from lodger.lint.location import Location


@dataclass(frozen=True)
class ServedWorker:
    """One worker with everything that follows from its settings; ``engine`` is the name of what runs it."""

    fleet: Fleet
    host: Host
    worker: Worker
    settings: EngineSettings
    engine: str
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
        draft = self.settings.draft
        return capacity.describe(self.fleet, draft.model) if draft and draft.model else None

    @cached_property
    def outcome(self) -> Prediction | NoRoom | None:
        """What the memory admits, why it admits nothing, or None where nothing is known."""
        return self._predicted(lambda subject: subject.predict())

    @cached_property
    def most(self) -> Prediction | NoRoom | None:
        """The same with as many requests as there is room for."""
        return self._predicted(lambda subject: subject.most())

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
    def of(cls, fleet: Fleet, hosts: Sequence[Host], workers: Sequence[ServedWorker], root: Path = CODE) -> View:
        """Return the view of ``hosts``, with the templates and runbooks below ``root`` and those beside the inventory."""
        own = _texts(fleet.folder / "runbooks", "*.md")
        templates = _texts(root / "templates", "*/*.compose.yml.j2")
        return cls(fleet, hosts, workers, templates, _texts(root / "runbooks", "*.md") | own)

    def run_by(self, engine: str) -> View:
        """Return what rules of one engine see: its workers and its templates."""
        workers = [served for served in self.workers if served.engine == engine]
        templates = {path: text for path, text in self.templates.items() if path.parent.name == engine}
        return replace(self, workers=workers, templates=templates)

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
