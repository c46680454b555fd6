"""A service of a release, and the files that make it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lodger.host import paths


@dataclass(frozen=True)
class File:
    """One file of a release; ``path`` is relative to the release's folder."""

    path: str
    content: str
    mode: int = 0o644


@dataclass(frozen=True)
class RenderedService:
    """One container that a systemd unit of the same name runs.

    ``container`` is also the Compose project's name, ``image`` its reference by digest, ``port`` where it listens on the
    host, ``gpus`` the GPUs it has to itself. ``config_hash`` covers the service's own files without the label that
    carries it. The time-outs are for its slowest start and its longest stop, in seconds. ``listen`` is the address of
    ``port``, ``address`` that at which other hosts reach this one; ``identity`` is what a worker of its pool tells of itself,
    by the names of /server_info; ``key`` is the mark of the key that it asks for, "" for none.
    """

    name: str
    kind: Literal["worker", "router"]
    unit: str
    files: tuple[File, ...]
    config_hash: str
    container: str
    image: str
    port: int
    gpus: tuple[int, ...]
    start_timeout_s: int
    stop_timeout_s: int
    pool: str
    listen: str
    identity: Mapping[str, str]
    address: str
    key: str

    @property
    def service(self) -> Service:
        """The service as a manifest keeps it."""
        return Service(
            name=self.name,
            kind=self.kind,
            unit=self.unit,
            container=self.container,
            config=self.config_hash,
            image=self.image,
            port=self.port,
            gpus=self.gpus,
            start=self.start_timeout_s,
            stop=self.stop_timeout_s,
            pool=self.pool,
            listen=self.listen,
            identity=self.identity,
            address=self.address,
            key=self.key,
        )


@dataclass(frozen=True)
class Release:
    """Everything that Lodger puts on one host."""

    host: str
    services: tuple[RenderedService, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """All files, ordered by path."""
        return tuple(sorted((file for service in self.services for file in service.files), key=lambda f: f.path))

    @property
    def by_name(self) -> dict[str, Service]:
        """Its services by their names, as a manifest keeps them."""
        return {service.name: service.service for service in self.services}

    @property
    def id(self) -> str:
        """Name of the release: the beginning of the hash of all its paths, modes and contents."""
        return hash_of(self.files)


def hash_of(files: Iterable[File]) -> str:
    """Return the beginning of the hash of all paths, modes and contents."""
    listing = json.dumps([[file.path, file.mode, file.content] for file in files])
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Service:
    """A service as a release defines it; kept in the release's manifest, so that a rollback needs no inventory.

    ``config`` is the hash of its own files, ``gpus`` the numbers it uses, ``stop`` and ``start`` its longest (s). ``pool``
    it serves in, ``listen`` the address of its port, ``address`` that at which other hosts reach this one, ``identity`` what
    it serves by the names of /server_info, ``key`` the mark of the key that it asks for.
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

    @property
    def key_file(self) -> str:
        """The file on the host with the header that it asks for, "" for none."""
        return paths.key(self.pool, self.key) if self.key else ""

    @staticmethod
    def load(data: Mapping[str, Any]) -> Service:
        """Return the service that a manifest describes; raise TypeError or KeyError when it describes none.

        Keys that only a later Lodger knows are passed over, so that an earlier one can roll back what it deployed.
        """
        known = {name.name: data[name.name] for name in fields(Service) if name.name in data}
        return Service(**{**known, "gpus": tuple(data["gpus"])})
