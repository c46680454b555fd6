"""Every state that a runbook can name, and what it is made from.

``Situation`` is what a runbook is expanded against: the target of this run on one host. A deploy takes it from the
inventory, a rollback from the manifest that an earlier release left on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lodger.footprint import Owner
from lodger.states.base import State
from lodger.states.host import HostFit
from lodger.states.image import ImagePresent, WeightsPresent
from lodger.states.neighbour import NeighbourReplaced, NeighbourRestored
from lodger.states.release import Content, Pruned, ReleaseCurrent, ReleaseStaged
from lodger.states.served import Smoke, Smoked
from lodger.states.service import GpusFree, Managed, ServiceGone, ServiceInstalled, ServiceReady
from lodger.states.standing import Standing


@dataclass(frozen=True)
class Situation:
    """What is to be true of one host after a run, in values that states are made from.

    ``release`` is the id to serve ("" for none), ``history`` the record to leave (None: the host's own plus
    ``release``), ``gone`` services that the host has and the release has not, ``turns`` service -> pool, ``models``
    name -> (folder, bytes), ``image_room`` reference -> bytes, ``neighbours`` those that may share GPUs (owner ->
    promised MiB), ``replaced`` (kind, name) of those to take down, ``records`` those to bring back.
    """

    host: str
    release: str
    services: Mapping[str, Managed]
    driver: str = ""
    gpu_count: int = 0
    gpu_memory: int = 0
    cuda: str = ""
    files: Mapping[str, Content] = field(default_factory=dict)
    manifest: str = ""
    history: tuple[str, ...] | None = None
    gone: Mapping[str, Managed] = field(default_factory=dict)
    models: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    image_room: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, str] = field(default_factory=dict)
    neighbours: Mapping[Owner, int] = field(default_factory=dict)
    replaced: tuple[tuple[str, str], ...] = ()
    records: tuple[Standing, ...] = ()
    smoke: Callable[[str], Smoke] | None = None


def _host_fit(at: Situation, _: Any) -> State:
    return HostFit(driver=at.driver, gpu_count=at.gpu_count, gpu_memory=at.gpu_memory, cuda=at.cuda)


def _image_present(at: Situation, image: Any) -> State:
    return ImagePresent(image, room=at.image_room.get(image, 0))


def _weights_present(at: Situation, model: Any) -> State:
    folder, size = at.models[model]
    return WeightsPresent(model, folder, size)


def _gpus_free(at: Situation, service: Any) -> State:
    replaced = [Owner(kind, name) for kind, name in at.replaced]
    return GpusFree(service, at.host, neighbours=at.neighbours, replaced=replaced)


def _smoke_passed(at: Situation, service: Any) -> State:
    if at.smoke is None:
        raise LookupError("smoke_passed needs something that can ask the worker")
    return Smoked(service, at.host, at.smoke(service.name))


# Name in a runbook -> (what it is repeated for, how one is made). "" stands once.
CATALOG: Mapping[str, tuple[str, Callable[[Situation, Any], State]]] = {
    "host_fit": ("", _host_fit),
    "image_present": ("image", _image_present),
    "weights_present": ("model", _weights_present),
    "release_staged": ("", lambda at, _: ReleaseStaged(at.release, at.files, at.manifest)),
    "neighbour_replaced": ("replaced neighbour", lambda _, item: NeighbourReplaced(*item)),
    "neighbour_restored": ("recorded neighbour", lambda _, item: NeighbourRestored(item)),
    "service_gone": ("service that is no longer wanted", lambda at, item: ServiceGone(item, at.host)),
    "service_installed": ("service", lambda at, item: ServiceInstalled(item, at.host, at.release)),
    "gpus_free": ("worker", _gpus_free),
    "worker_ready": ("worker", lambda at, item: ServiceReady(item, at.host)),
    "smoke_passed": ("worker", _smoke_passed),
    "router_ready": ("router", lambda at, item: ServiceReady(item, at.host)),
    "release_current": ("", lambda at, _: ReleaseCurrent(at.release, at.history)),
    "old_releases_pruned": ("", lambda at, _: Pruned(at.release)),
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
        "service": [*workers, *routers],
    }
    return choice[each]
