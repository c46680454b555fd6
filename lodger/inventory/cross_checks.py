"""What the values of an inventory say about each other: within one file, and between files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from lodger.inventory.messages import explain
from lodger.inventory.schema import NO_DRAFT_MODEL, EngineSettings, Host, Pool, Site, merged
from lodger.inventory.strict_yaml import Document, Loc

Mistakes = Iterator[tuple[str, Loc, str]]
"""File (its name without .yml), path in it, and the mistake in words."""


def check(site: Site | None, hosts: Mapping[str, Host], documents: Mapping[str, Document]) -> Mistakes:
    """Yield every contradiction. What needs a file that is itself mistaken is left for the next try.

    ``site`` is None, and ``hosts`` lacks a host, where the file in ``documents`` was refused already.
    """
    for name, host in hosts.items():
        yield from _check_gpus(name, host)
        yield from _check_ports(name, host)
        yield from _check_neighbours(name, host)
    yield from _check_identities(hosts)
    if site is None:
        return
    for name, pool in site.pools.items():
        yield from _check_pool(site, name, pool)
    for name, host in hosts.items():
        yield from _check_pools_of(site, name, host)
        yield from _check_own_settings(site, name, host, documents[name])
    yield from _check_routers(site, hosts)
    if {"fleet", *hosts} == set(documents):
        yield from _check_routes(site, hosts)


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "none is defined"


def _check_pool(site: Site, name: str, pool: Pool) -> Mistakes:
    at = ("pools", name)
    for key, image in (("image", pool.image), ("router_image", pool.router_image)):
        if image is not None and image not in site.images:
            yield "fleet", (*at, key), f"there is no image {image}; accepted: {_names(site.images)}"
    if pool.model not in site.models:
        yield "fleet", (*at, "model"), f"there is no model {pool.model}; accepted: {_names(site.models)}"
    elif site.models[pool.model].served_name is None:
        yield "fleet", ("models", pool.model), f"served_name is missing, and pool {name} serves it; accepted: text"
    yield from (("fleet", (*at, *loc), text) for loc, text in _check_engine(site, pool, pool.model))


def _check_engine(site: Site, engine: EngineSettings, model: str) -> Iterator[tuple[Loc, str]]:
    if engine.stop_timeout_s <= engine.longest_stream_s:
        why = f"would cut off answers that may take {engine.longest_stream_s} s"
        yield ("stop_timeout_s",), f"is {engine.stop_timeout_s}, which {why}; accepted: more than longest_stream_s"
    if (draft := engine.draft) is None:
        return
    if draft.model is None:
        if draft.algorithm not in NO_DRAFT_MODEL:
            yield ("draft",), f"{draft.algorithm} needs draft.model; accepted: {_names(site.models)}"
        elif draft.quantization is not None:
            yield ("draft", "quantization"), "there is no draft model to apply it to; accepted: nothing"
    elif draft.algorithm == "NGRAM":
        yield ("draft", "model"), "NGRAM uses no draft model; accepted: nothing"
    elif draft.model not in site.models:
        yield ("draft", "model"), f"there is no model {draft.model}; accepted: {_names(site.models)}"
    elif draft.model == model:
        yield ("draft", "model"), "is the model itself, which would only slow it down; accepted: a smaller model"


def _check_gpus(name: str, host: Host) -> Mistakes:
    there = f"0 to {host.gpus.count - 1}"
    owner: dict[int, str] = {}
    for worker_name, worker in host.workers.items():
        at = ("workers", worker_name, "gpus")
        if worker.tp not in (1, 2, 4, 8):
            yield name, at, f"{worker.tp} GPUs do not divide the model's heads evenly; accepted: 1, 2, 4 or 8 GPUs"
        for position, gpu in enumerate(worker.gpus):
            if gpu >= host.gpus.count:
                yield name, (*at, position), f"the host has no GPU {gpu}; accepted: {there}"
            elif owner.get(gpu) == worker_name:
                yield name, (*at, position), f"GPU {gpu} is listed twice; accepted: each GPU once"
            elif gpu in owner:
                yield name, (*at, position), f"GPU {gpu} belongs to worker {owner[gpu]}; accepted: a GPU that no worker has"
            owner.setdefault(gpu, worker_name)


def _check_ports(name: str, host: Host) -> Mistakes:
    ports: list[tuple[Loc, int, str]] = [
        (("workers", worker_name, "port"), worker.port, f"worker {worker_name}") for worker_name, worker in host.workers.items()
    ]
    if host.router is not None:
        ports.append((("router", "port"), host.router.port, "the router"))
        ports.append((("router", "prometheus_port"), host.router.prometheus_port, "the router's metrics"))
    owner: dict[int, str] = {}
    for loc, port, who in ports:
        if port in owner:
            yield name, loc, f"port {port} belongs to {owner[port]}; accepted: a port of its own"
        owner.setdefault(port, who)


_NEIGHBOUR_NAMES: dict[str, tuple[str, str]] = {
    "unit": (r"[A-Za-z0-9:_.\\@-]+\.(service|socket|timer|target|path|mount)", "a unit's full name, such as vllm.service"),
    "user-unit": (r"[a-z_][a-z0-9_.-]*:[A-Za-z0-9:_.\\@-]+\.service", "user:unit, such as ann:training.service"),
    "program": (r"[A-Za-z0-9_.@-]+(:[A-Za-z0-9_.@-]+)?", "a supervisord program, or group:program"),
    "container": (r"[A-Za-z0-9][A-Za-z0-9_.-]+", "a container's name"),
    "compose": (r"[a-z0-9][a-z0-9_-]*", "a Compose project's name"),
}


def _check_neighbours(name: str, host: Host) -> Mistakes:
    for key, neighbour in host.neighbours.items():
        at = ("neighbours", key)
        pattern, accepts = _NEIGHBOUR_NAMES[neighbour.kind]
        if not re.fullmatch(pattern, key):
            yield name, at, f"is not the name of a {neighbour.kind}; accepted: {accepts}"
        if neighbour.kind == "program" and neighbour.policy == "replace":
            why = "supervisord has no way to disable one, so it would be back after the next reboot"
            yield name, (*at, "policy"), f"a supervisord program cannot be replaced: {why}; accepted: pause"
        elif neighbour.policy == "replace" and neighbour.gpu_memory_mib:
            yield name, (*at, "gpu_memory_mib"), "a replaced neighbour does not run and holds no memory; accepted: 0"
        if neighbour.gpu_memory_mib >= host.gpus.memory_mib:
            yield name, (*at, "gpu_memory_mib"), f"leaves nothing of a GPU; accepted: below {host.gpus.memory_mib}"
        for position, gpu in enumerate(neighbour.gpus or ()):
            if gpu >= host.gpus.count:
                yield name, (*at, "gpus", position), f"the host has no GPU {gpu}; accepted: 0 to {host.gpus.count - 1}"


def _check_pools_of(site: Site, name: str, host: Host) -> Mistakes:
    for worker_name, worker in host.workers.items():
        if worker.pool not in site.pools:
            yield name, ("workers", worker_name, "pool"), f"there is no pool {worker.pool}; accepted: {_names(site.pools)}"
    if host.router is None:
        return
    pool = site.pools.get(host.router.pool)
    if pool is None:
        yield name, ("router", "pool"), f"there is no pool {host.router.pool}; accepted: {_names(site.pools)}"
    elif pool.router_image is None:
        yield "fleet", ("pools", host.router.pool), f"router_image is missing, and {name} has a router for the pool"


def _check_routers(site: Site, hosts: Mapping[str, Host]) -> Mistakes:
    """Check that clients know where to go: one router a pool that is not a standby, and all behind its virtual address."""
    active: dict[str, str] = {}
    for name, host in hosts.items():
        if (router := host.router) is None or (pool := site.pools.get(router.pool)) is None:
            continue
        if not router.standby and (first := active.setdefault(router.pool, name)) != name:
            text = f"pool {router.pool} has its router on {first}; accepted: `standby: true`, for a second one"
            yield name, ("router", "pool"), text
        if pool.vrrp is not None and router.interface is None:
            yield name, ("router",), f"interface is missing, and pool {router.pool} has a virtual address to carry"
        if pool.vrrp is not None and router.listen != "0.0.0.0":  # noqa: S104  # compared, not bound
            yield name, ("router", "listen"), f"nobody reaches it at {pool.vrrp.address} then; accepted: 0.0.0.0"


def _check_own_settings(site: Site, name: str, host: Host, doc: Document) -> Mistakes:
    """Check what each worker's own settings make of its pool's."""
    for key, worker in host.workers.items():
        pool = site.pools.get(worker.pool)
        if pool is None or not worker.engine:
            continue
        at = ("workers", key, "engine")
        try:
            engine = EngineSettings.model_validate(merged(pool, worker.engine))
        except ValidationError as error:
            yield from ((name, loc, text) for loc, text in explain(error, EngineSettings, doc, at))
        else:
            yield from ((name, (*at, *loc), text) for loc, text in _check_engine(site, engine, pool.model))


def _identity(host: Host) -> tuple[str, int | None]:
    return host.address, host.ssh.port


def _check_identities(hosts: Mapping[str, Host]) -> Mistakes:
    addresses: dict[tuple[str, int | None], str] = {}
    machines: dict[str, str] = {}
    for name, host in hosts.items():
        first = addresses.setdefault(_identity(host), name)
        if first != name:
            yield name, ("address",), f"{host.address} is already host {first}; accepted: one file a machine"
        if host.machine_id is not None:
            first = machines.setdefault(host.machine_id, name)
            if first != name:
                yield name, ("machine_id",), f"is also that of host {first}; accepted: one file a machine"


def _check_routes(site: Site, hosts: Mapping[str, Host]) -> Mistakes:
    for name, host in hosts.items():
        if (router := host.router) is None or router.pool not in site.pools:
            continue
        members = [(n, h, k, w) for n, h in hosts.items() for k, w in h.workers.items() if w.pool == router.pool]
        if not members:
            yield name, ("router", "pool"), f"no host has a worker in pool {router.pool}; accepted: a pool with workers"
        urls: dict[tuple[str, int], tuple[str, str]] = {}
        for other, other_host, key, worker in members:
            if other != name and worker.listen.startswith("127."):
                text = f"the router on {name} cannot reach {worker.listen}; accepted: an address of the host, or 0.0.0.0"
                yield other, ("workers", key, "listen"), text
            url = (other_host.service_address or other_host.address, worker.port)
            first, first_key = urls.setdefault(url, (other, key))
            if _identity(hosts[first]) != _identity(other_host):  # the same machine's ports are compared elsewhere
                text = f"{url[0]}:{url[1]} is already worker {first_key} on {first}; accepted: a service_address of its own"
                yield other, ("workers", key, "port"), text
