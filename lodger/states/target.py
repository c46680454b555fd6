"""What should be true of one host after a run. States are made from it; see ``registry``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lodger.host.nvidia import DAEMON_UNITS
from lodger.host.ownership import Owner, declared
from lodger.inventory import Fleet, Host
from lodger.release.api_keys import ApiKey
from lodger.release.service import File, Service
from lodger.states.driver_goal import DriverGoal
from lodger.states.goal import NEVER, Goal
from lodger.states.neighbour_status import NeighbourStatus


@dataclass(frozen=True)
class TargetRelease:
    """The release that a host should serve, from the inventory or an earlier one on the host.

    ``id`` is "" for none. ``files`` and ``manifest`` are those to upload. ``smoke`` is what smoke expects of each worker, by
    the manifest. ``keys`` are those that the services require. ``history`` is the history to record: None for the host's own
    with this release at its end.
    """

    id: str = ""
    services: Mapping[str, Service] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    manifest: str = ""
    smoke: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: tuple[ApiKey, ...] = ()
    history: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PauseOrder:
    """The order to pause a worker: who gave it, and until when by the host's clock ("" for no end)."""

    who: str
    until: str


@dataclass(frozen=True)
class TargetOptions:
    """What the operator asked for.

    ``together`` are the hosts that the same command changes. ``pause`` pauses a worker. ``patience`` is how long (s) a run
    waits for processes on GPUs that it needs; at 0 it refuses. ``restore`` are records of neighbours to put back. ``goal`` is
    what services are stopped for, until it is reached. ``learns``: an engine's figures correct the capacity plan.
    """

    together: frozenset[str] = frozenset()
    pause: PauseOrder | None = None
    patience: float = 0.0
    restore: tuple[NeighbourStatus, ...] = ()
    goal: Goal = NEVER
    learns: bool = False


@dataclass(frozen=True)
class Target:
    """What a run makes of ``host``. ``present`` are the services that are installed now, ``paused`` the paused ones."""

    fleet: Fleet
    host: Host
    release: TargetRelease
    present: Mapping[str, Service] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    options: TargetOptions = TargetOptions()

    @property
    def gone(self) -> dict[str, Service]:
        """Services that are installed and that the release does not have."""
        return {name: service for name, service in self.present.items() if name not in self.release.services}

    @property
    def goal(self) -> Goal:
        """What services are stopped for."""
        return self.options.goal

    @property
    def driver(self) -> DriverGoal:
        """The declared driver as the goal of an upgrade."""
        return DriverGoal.of(self.host)

    @property
    def replaced(self) -> tuple[Owner, ...]:
        """Neighbours that stay stopped while we serve."""
        return self._neighbours("replace")

    @property
    def shares_gpus(self) -> tuple[Owner, ...]:
        """Neighbours that may use GPUs beside our workers; ``host.reserved_mib`` says how much memory."""
        return self._neighbours("pause")

    def _neighbours(self, policy: str) -> tuple[Owner, ...]:
        return tuple(owner for owner, one in declared(self.host).items() if one.policy == policy)

    def pool_of(self, name: str) -> str:
        """Return the pool of the service ``name``, "" for none; old manifests name no pool."""
        service = self.release.services.get(name) or self.present.get(name)
        if service is not None and service.pool:
            return service.pool
        if name == "router":
            return self.host.router.pool if self.host.router else ""
        worker = self.host.workers.get(name.removeprefix("worker-"))
        return worker.pool if worker else ""

    def items(self, each: str) -> list[Any]:
        """Return the items that a block is repeated for on this host; raise KeyError for an unknown ``each``."""
        services = self.release.services.values()
        workers = [service for service in services if service.kind == "worker"]
        routers = [service for service in services if service.kind == "router"]
        neighbours = self.host.neighbours.values()
        choice: dict[str, list[Any]] = {
            "": [None],
            "image": sorted({service.image for service in services}),
            "model": sorted(self.fleet.models_of(self.host)),
            "replaced neighbour": list(self.replaced),
            "recorded neighbour": list(self.options.restore),
            "service that is no longer wanted": list(self.gone.values()),
            "worker": workers,
            "router": routers,
            # Every neighbour may have a GPU open, one that a deploy would replace too; the driver's own daemons as well, last.
            "pausable neighbour": list(dict.fromkeys([*declared(self.host), *(Owner("unit", name) for name in DAEMON_UNITS)])),
            "warned neighbour": [one for one in neighbours if one.warn],
            "service": [*workers, *routers],
            "key": list(self.release.keys),
        }
        return choice[each]
