"""A service of a release, and the files that make it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lodger.engines import DEFAULT, named
from lodger.host import paths


@dataclass(frozen=True)
class File:
    """One file of a release; ``path`` is relative to the release's folder."""

    path: str
    content: str
    mode: int = 0o644


def hash_of(files: Iterable[File]) -> str:
    """Return the beginning of the hash of all paths, modes and contents."""
    listing = json.dumps([[file.path, file.mode, file.content] for file in files])
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Service:
    """A service as a release defines it; kept in the release's manifest, so that a rollback needs no inventory.

    ``config`` is the hash of its own files, ``gpus`` the numbers of its GPUs, ``stop`` and ``start`` the longest stop and
    start (s), ``pool`` its pool, ``listen`` the address of its port, ``address`` the one at which other hosts reach its host,
    ``identity`` what it serves in its engine's terms, ``key`` the mark of the key that it requires, ``engine`` its engine.
    """

    name: str
    kind: str
    unit: str
    container: str
    config: str
    image: str
    port: int
    gpus: tuple[int, ...]
    start: float
    stop: float
    pool: str = ""
    listen: str = "0.0.0.0"  # noqa: S104  # a manifest of before says nothing else
    identity: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    key: str = ""
    engine: str = DEFAULT.name

    @property
    def key_file(self) -> str:
        """The file on the host with the header that it requires, "" for none."""
        return paths.key(self.pool, self.key) if self.key else ""

    @staticmethod
    def load(data: Mapping[str, Any]) -> Service:
        """Return the service that a manifest describes; raise TypeError or KeyError when it describes none.

        Keys that only a later Lodger knows are passed over, so that an earlier one can roll back what it deployed.
        """
        known = {name.name: data[name.name] for name in fields(Service) if name.name in data}
        service = Service(**{**known, "gpus": tuple(data["gpus"])})
        named(service.engine)
        return service

    def manifest(self) -> dict[str, Any]:
        """Return its entry in a manifest, without the default engine: an earlier Lodger could not read that."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("engine", DEFAULT.name)}


@dataclass(frozen=True)
class Release:
    """Everything that Lodger puts on one host: its services, and all their files, ordered by path."""

    host: str
    services: tuple[Service, ...]
    files: tuple[File, ...]

    @property
    def by_name(self) -> dict[str, Service]:
        """Its services by their names."""
        return {service.name: service for service in self.services}

    @property
    def id(self) -> str:
        """Name of the release: the beginning of the hash of all its paths, modes and contents."""
        return hash_of(self.files)
