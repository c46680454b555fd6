"""What Lodger asks of an engine, and each engine in a folder of its own.

Whoever needs an engine's words asks :class:`Engine` for them. What engines have in common stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lodger import capacity
from lodger.capacity import Subject
from lodger.engines.log import LogLines
from lodger.engines.pool import PoolApi
from lodger.engines.sglang.engine import Sglang
from lodger.engines.smoke import Ask, SmokeFigures
from lodger.inventory import Fleet, Host, Image, Worker
from lodger.lint.rule import Rule


class Engine(Protocol):
    """All that is asked of an engine.

    Its command line, where its readiness is asked, and what starts it with a key are files in ``templates/NAME/``:
    ``worker.compose.yml.j2`` with a service ``engine``, ``router.compose.yml.j2`` with a service ``router``, ``starter.py``.
    """

    name: str
    """What a manifest calls it."""
    log: LogLines
    """The lines of its log."""
    pool: PoolApi
    """How its workers and routers are asked, and told."""
    subject: type[Subject]
    """How much its workers can serve."""
    image_room: int
    """Bytes that a host needs while one of its images is pulled."""

    def expectation(self, fleet: Fleet, host: Host, worker: Worker) -> dict[str, Any]:
        """Return what smoke expects of ``worker``, as JSON for the manifest."""

    def smoke(self, expected: Mapping[str, Any]) -> Ask:
        """Return what asks a worker with these expectations; raise Refused where they cannot be read."""

    def cuda(self, image: Image) -> str:
        """Return the CUDA release in an image, "" where nothing says it."""

    def rules(self) -> Mapping[str, Rule]:
        """Return what is known to break with it, by number."""

    def identity(self, fleet: Fleet, worker: Worker) -> Mapping[str, str]:
        """Return what ``worker`` is to say that it serves, by the engine's own names."""


DEFAULT: Engine = Sglang()
"""The engine of a manifest that names none: those of the first releases."""

ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (DEFAULT,)}


def named(name: str) -> Engine:
    """Return the engine that a manifest names; raise KeyError for one that this Lodger does not have."""
    return ENGINES[name]


def engine_in(image: Image) -> Engine:
    """Return the engine in an image, which has its router as well. There is one engine, so the inventory need not name it."""
    del image
    return DEFAULT


def engine_of(fleet: Fleet, pool: str) -> Engine:
    """Return the engine that serves a pool."""
    return engine_in(fleet.images[fleet.pools[pool].image])


def expectations(fleet: Fleet, host: Host) -> dict[str, dict[str, Any]]:
    """Return what smoke expects of each worker of a host, as JSON for the manifest."""
    return {
        f"worker-{name}": engine_of(fleet, worker.pool).expectation(fleet, host, worker)
        for name, worker in host.workers.items()
    }


def learn(fleet: Fleet, host: Host, worker: Worker, figures: SmokeFigures) -> str:
    """Compare a worker's engine with its capacity plan and return what to tell; a correction is kept beside the inventory."""
    if figures.kv_tokens is None:
        return ""
    about = engine_of(fleet, worker.pool).subject.of(fleet, host, worker)
    compared = capacity.learn(about, figures.kv_tokens, figures.running)
    return f"; capacity: {compared}" if compared else ""
