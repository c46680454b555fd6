"""Every state that a runbook can name, and what it is made from.

``Situation`` is what a runbook is expanded against: the target of this run on one host. A deploy takes it from the
inventory, a rollback from the manifest that an earlier release left on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lodger.host.facts.base import Fact
from lodger.host.ownership import Owner
from lodger.release.api_keys import ApiKey
from lodger.release.service import Service
from lodger.states.base import State
from lodger.states.dpkg_free import DpkgFree
from lodger.states.driver_goal import DriverGoal
from lodger.states.driver_installed import DriverInstalled
from lodger.states.driver_loaded import DriverLoaded
from lodger.states.gpus_free import GpusFree, Promised
from lodger.states.gpus_released import GpusReleased
from lodger.states.gpus_waited_for import GpusWaitedFor
from lodger.states.host_fit import HostFit
from lodger.states.image_present import ImagePresent
from lodger.states.key_in_place import KeyInPlace
from lodger.states.leaver_drained import LeaverDrained
from lodger.states.neighbour_paused import NeighbourPaused
from lodger.states.neighbour_replaced import NeighbourReplaced
from lodger.states.neighbour_restored import NeighbourRestored
from lodger.states.neighbour_resumed import NeighbourResumed
from lodger.states.neighbour_status import NeighbourStatus
from lodger.states.neighbour_told import NeighbourTold
from lodger.states.neighbour_warned import NeighbourWarned
from lodger.states.old_releases_pruned import OldReleasesPruned
from lodger.states.only_driver_changes import OnlyDriverChanges
from lodger.states.packages_cached import PackagesCached
from lodger.states.pool_complete import PoolComplete
from lodger.states.pool_place import PoolPlace, RouterMembers
from lodger.states.rebooted import Rebooted
from lodger.states.release_current import ReleaseCurrent
from lodger.states.release_staged import Content, ReleaseStaged
from lodger.states.service_gone import ServiceGone
from lodger.states.service_installed import ServiceInstalled
from lodger.states.service_ready import ServiceReady
from lodger.states.service_stopped import ServiceStopped
from lodger.states.smoke_passed import Smoke, SmokePassed
from lodger.states.stopped import Reached
from lodger.states.upgrade_possible import UpgradePossible
from lodger.states.weights_present import WeightsPresent
from lodger.states.worker_drained import WorkerDrained
from lodger.states.worker_joined import WorkerJoined
from lodger.states.worker_leaving import WorkerLeaving
from lodger.states.worker_pause import AutoResume
from lodger.states.worker_paused import WorkerPaused
from lodger.states.worker_resumed import ServiceResumed
from lodger.states.worker_returned import WorkerReturned
from lodger.states.worker_still_paused import WorkerStillPaused
from lodger.states.worker_unpaused import WorkerUnpaused


@dataclass(frozen=True)
class Notice:
    """Who is to be told before a neighbour is paused: its ``name``, the ``command`` that tells, how many ``minutes`` before."""

    name: str
    command: str
    minutes: int


@dataclass(frozen=True)
class Giving:
    """That a worker's GPUs are to be given back: by ``who``, until when ("" for no end), and what brings it back."""

    who: str
    until: str
    way_back: AutoResume


@dataclass(frozen=True)
class Situation:
    """What is to be true of one host after a run, in values that states are made from.

    ``release`` is the id to serve ("" for none), ``history`` the record to leave (None: the host's own plus ``release``),
    ``gone`` services that the host has and the release has not, ``turns`` service -> pool, ``models`` name -> (folder,
    bytes), ``image_room`` reference -> bytes, ``neighbours`` those that may share GPUs, ``promised`` how much of a GPU they
    keep (MiB), ``replaced`` (kind, name) of those to take down, ``records`` those to bring back, ``pausable`` (kind, name) of
    those that may be stopped for a while, ``warned`` whom to tell, ``reached`` (which reads ``reads``) whether what they are
    stopped for is done; ``places`` worker -> its place in its pool, ``roll`` who stands behind the host's router, ``keys`` of
    the pools that it serves; ``paused`` services whose GPUs are given back, ``giving`` whether this run gives some back,
    ``patience`` how long it waits for who is on GPUs that it needs (s; 0: it refuses).
    """

    host: str
    release: str
    services: Mapping[str, Service]
    driver: str = ""
    gpu_count: int = 0
    gpu_memory: int = 0
    cuda: str = ""
    files: Mapping[str, Content] = field(default_factory=dict)
    manifest: str = ""
    history: tuple[str, ...] | None = None
    gone: Mapping[str, Service] = field(default_factory=dict)
    models: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    image_room: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, str] = field(default_factory=dict)
    neighbours: tuple[Owner, ...] = ()
    promised: Promised = lambda _: 0
    replaced: tuple[tuple[str, str], ...] = ()
    records: tuple[NeighbourStatus, ...] = ()
    smoke: Callable[[str], Smoke] | None = None
    upgrade: DriverGoal | None = None
    pausable: tuple[tuple[str, str], ...] = ()
    warned: tuple[Notice, ...] = ()
    reached: Reached = lambda _: False
    reads: tuple[Fact[Any], ...] = ()
    places: Mapping[str, PoolPlace] = field(default_factory=dict)
    roll: RouterMembers | None = None
    keys: tuple[ApiKey, ...] = ()
    paused: frozenset[str] = frozenset()
    giving: Giving | None = None
    patience: float = 0.0


def _host_fit(at: Situation, _: Any) -> State:
    return HostFit(driver=at.driver, gpu_count=at.gpu_count, gpu_memory=at.gpu_memory, cuda=at.cuda)


def _image_present(at: Situation, image: Any) -> State:
    return ImagePresent(image, room=at.image_room.get(image, 0))


def _weights_present(at: Situation, model: Any) -> State:
    folder, size = at.models[model]
    return WeightsPresent(model, folder, size)


def _replaced(at: Situation) -> list[Owner]:
    return [Owner(kind, name) for kind, name in at.replaced]


def _gpus_free(at: Situation, service: Any) -> State:
    sharing: dict[str, Any] = {"neighbours": at.neighbours, "promised": at.promised, "replaced": _replaced(at)}
    if at.patience:
        return GpusWaitedFor(service, at.host, **sharing, patience=at.patience)
    return GpusFree(service, at.host, **sharing)


def _worker_paused(at: Situation, service: Any) -> State:
    if at.giving is None:
        return WorkerStillPaused(service, AutoResume(at.host, _place(at, service), at.neighbours))
    return WorkerPaused(service, at.giving.who, at.giving.until, at.giving.way_back)


def _smoke_passed(at: Situation, service: Any) -> State:
    if at.smoke is None:
        raise LookupError("smoke_passed needs something that can ask the worker")
    return SmokePassed(service, at.host, at.smoke(service.name))


def _upgrade(at: Situation) -> DriverGoal:
    if at.upgrade is None:
        raise LookupError("this state needs a host whose driver is to be upgraded")
    return at.upgrade


def _place(at: Situation, service: Service) -> PoolPlace:
    return at.places.get(service.name, PoolPlace())


def _pool_complete(at: Situation, _: Any) -> State:
    if at.roll is None:
        raise LookupError("pool_complete needs to know who stands behind the router")
    return PoolComplete(at.roll)


# What asks a worker to run, or stops it because it does: not asked of one that is paused.
RUNNING = frozenset(
    {
        *("worker_drained", "gpus_free", "worker_ready", "smoke_passed", "worker_joined"),
        *("worker_leaving", "service_stopped", "worker_resumed", "worker_returned"),
    }
)

# Name in a runbook -> (what it is repeated for, how one is made). "" stands once.
CATALOG: Mapping[str, tuple[str, Callable[[Situation, Any], State]]] = {
    "host_fit": ("", _host_fit),
    "image_present": ("image", _image_present),
    "weights_present": ("model", _weights_present),
    "release_staged": ("", lambda at, _: ReleaseStaged(at.release, at.files, at.manifest)),
    "neighbour_replaced": ("replaced neighbour", lambda _, item: NeighbourReplaced(*item)),
    "neighbour_restored": ("recorded neighbour", lambda _, item: NeighbourRestored(item)),
    "service_gone": ("service that is no longer wanted", lambda at, item: ServiceGone(item, at.host)),
    "key_in_place": ("key", lambda _, item: KeyInPlace(item)),
    "leaver_drained": (
        "service that is no longer wanted",
        lambda at, item: LeaverDrained(item, at.host, _place(at, item)),
    ),
    "worker_drained": ("worker", lambda at, item: WorkerDrained(item, at.host, _place(at, item))),
    "worker_paused": ("worker", _worker_paused),
    "worker_unpaused": ("worker", lambda _, item: WorkerUnpaused(item)),
    "worker_joined": ("worker", lambda at, item: WorkerJoined(item, at.host, _place(at, item))),
    "pool_complete": ("router", _pool_complete),
    "service_installed": ("service", lambda at, item: ServiceInstalled(item, at.host, at.release)),
    "gpus_free": ("worker", _gpus_free),
    "worker_ready": ("worker", lambda at, item: ServiceReady(item, at.host)),
    "smoke_passed": ("worker", _smoke_passed),
    "router_ready": ("router", lambda at, item: ServiceReady(item, at.host, replaced=_replaced(at))),
    "release_current": ("", lambda at, _: ReleaseCurrent(at.release, at.history)),
    "old_releases_pruned": ("", lambda at, _: OldReleasesPruned(at.release)),
    "neighbour_warned": (
        "warned neighbour",
        lambda at, item: NeighbourWarned(item.name, item.command, item.minutes, at.reached, at.reads),
    ),
    "neighbour_paused": ("pausable neighbour", lambda at, item: NeighbourPaused(item[0], item[1], at.reached, at.reads)),
    "neighbour_resumed": ("pausable neighbour", lambda _, item: NeighbourResumed(*item)),
    "neighbour_told": ("warned neighbour", lambda _, item: NeighbourTold(item.name, item.command)),
    "worker_leaving": ("worker", lambda at, item: WorkerLeaving(item, at.host, _place(at, item), at.reached, at.reads)),
    "worker_returned": ("worker", lambda at, item: WorkerReturned(item, at.host, _place(at, item))),
    "service_stopped": ("worker", lambda at, item: ServiceStopped(item, at.host, at.reached, at.reads)),
    "worker_resumed": ("worker", lambda at, item: ServiceResumed(item, at.host)),
    "upgrade_possible": ("", lambda at, _: UpgradePossible(_upgrade(at))),
    "dpkg_free": ("", lambda at, _: DpkgFree(_upgrade(at))),
    "packages_cached": ("", lambda at, _: PackagesCached(_upgrade(at))),
    "only_driver_changes": ("", lambda at, _: OnlyDriverChanges(_upgrade(at))),
    "gpus_released": ("", lambda at, _: GpusReleased(_upgrade(at))),
    "driver_installed": ("", lambda at, _: DriverInstalled(_upgrade(at))),
    "driver_loaded": ("", lambda at, _: DriverLoaded(_upgrade(at))),
    "rebooted": ("", lambda _at, _: Rebooted()),
}


def items(at: Situation, each: str) -> list[Any]:
    """Return what a block is repeated for on this host; raise KeyError for a word that means nothing."""
    workers = [service for service in at.services.values() if service.kind == "worker"]
    routers = [service for service in at.services.values() if service.kind == "router"]
    choice: dict[str, list[Any]] = {
        "": [None],
        "image": sorted({service.image for service in at.services.values()}),
        "model": sorted(at.models),
        "replaced neighbour": list(at.replaced),
        "recorded neighbour": list(at.records),
        "service that is no longer wanted": list(at.gone.values()),
        "worker": workers,
        "router": routers,
        "pausable neighbour": list(at.pausable),
        "warned neighbour": list(at.warned),
        "service": [*workers, *routers],
        "key": list(at.keys),
    }
    return choice[each]
