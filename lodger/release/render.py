"""Fleet and host to the files of one release. Pure: the same inventory and templates give the same bytes anywhere.

The template's environment quotes every value for its kind of file: for Compose and systemd each value of the inventory is
plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lodger.engines import engine_in
from lodger.errors import InventoryError
from lodger.host import paths
from lodger.inventory import Fleet, Host, Router, Worker
from lodger.release import api_keys
from lodger.release.api_keys import ApiKey
from lodger.release.quoting import TEMPLATES, compose_value, environment, unit_text
from lodger.release.service import File, Release, Service, hash_of

_PREPARE_S = 300  # waiting for Docker and clearing a leftover, before the engine itself starts
_SLACK_S = 60  # how far a limit lies beyond the sum of others that it must exceed


def render(fleet: Fleet, host: Host) -> Release:
    """Return the release of one host.

    Raises InventoryError when an image that the host needs has no digest yet.
    """
    rendered = [_worker(fleet, host, worker) for _, worker in sorted(host.workers.items())]
    if host.router is not None:
        rendered.append(_router(fleet, host, host.router))
    return _release(host, rendered)


def _release(host: Host, rendered: Sequence[tuple[Service, tuple[File, ...]]]) -> Release:
    files = sorted((file for _, files in rendered for file in files), key=lambda file: file.path)
    return Release(host.name, tuple(service for service, _ in rendered), tuple(files))


def router_beside(fleet: Fleet, host: Host, policy: str, port: int, metrics_port: int) -> Release:
    """Return a second router with the image and options of that of ``host``, with another policy, on loopback only.

    Its container and Compose project are lodger-router-probe; it is not part of a release.
    """
    if host.router is None:
        raise InventoryError("this host has no router", host=host.name)
    local = "127.0.0.1"
    router = host.router.model_copy(
        update={"port": port, "listen": local, "prometheus_port": metrics_port, "prometheus_listen": local}
    )
    pool = fleet.pools[router.pool]
    routing = pool.routing.model_copy(update={"policy": policy})
    pools = {**fleet.pools, pool.name: pool.model_copy(update={"routing": routing})}
    return _release(host, [_router(fleet.model_copy(update={"pools": pools}), host, router, "router-probe")])


def worker_urls(fleet: Fleet, host: Host, pool: str) -> tuple[str, ...]:
    """Return the URLs at which a router on ``host`` reaches each worker of a pool, ordered by host and worker."""
    return tuple(url(host.name, other, worker.listen, worker.port) for other, worker in fleet.pool_workers(pool))


def url(seen_from: str, host: Host, listen: str, port: int, address: str = "") -> str:
    """Return the URL at which a program on the host ``seen_from`` reaches what listens on ``host``.

    ``address`` is an earlier address of ``host``, "" for the one in the inventory.
    """
    here = "127.0.0.1" if listen == "0.0.0.0" else listen  # noqa: S104  # compared, not bound
    address = here if host.name == seen_from else address or reached(host)
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def reached(host: Host) -> str:
    """Return the address at which other hosts reach ``host``."""
    return host.service_address or host.address


def _worker(fleet: Fleet, host: Host, worker: Worker) -> tuple[Service, tuple[File, ...]]:
    pool, settings = fleet.pools[worker.pool], fleet.settings(worker)
    model, image = fleet.models[pool.model], fleet.images[pool.image]
    draft_model = fleet.models[settings.draft.model] if settings.draft and settings.draft.model else None
    gpus = " ".join(map(str, worker.gpus))
    key, engine = api_keys.of(fleet, pool.name), engine_in(image)
    service = Service(
        **_names("worker", f"worker-{worker.name}"),
        image=image.reference,
        port=worker.port,
        gpus=worker.gpus,
        start=settings.start_timeout_s,
        stop=settings.stop_timeout_s,
        pool=pool.name,
        listen=worker.listen,
        identity=engine.identity(fleet, worker),
        address=reached(host),
        key=key.mark if key else "",
        engine=engine.name,
    )
    context = {
        "host": host,
        "worker": worker,
        "engine": settings,
        "model": model,
        "draft_model": draft_model,
        "image": image,
        "description": f"Lodger worker {worker.name} on {host.name} ({model.served_name} on GPUs {gpus})",
    }
    return _with_files(service, context, (settings.restart_burst, settings.restart_delay_s), key)


def _router(fleet: Fleet, host: Host, router: Router, name: str = "router") -> tuple[Service, tuple[File, ...]]:
    pool = fleet.pools[router.pool]
    if pool.router_image is None:
        raise InventoryError(f"pool {pool.name} has no router_image", host=host.name)
    image, key = fleet.images[pool.router_image], api_keys.of(fleet, pool.name)
    service = Service(
        **_names("router", name),
        image=image.reference,
        port=router.port,
        gpus=(),
        start=router.start_timeout_s,
        stop=pool.stop_timeout_s,
        pool=pool.name,
        listen=router.listen,
        address=reached(host),
        key=key.mark if key else "",
        engine=engine_in(image).name,
    )
    context = {
        "host": host,
        "router": router,
        "pool": pool,
        "image": image,
        "worker_urls": worker_urls(fleet, host, pool.name),
        "service": "router",  # a second router uses the starter in the folder of the deployed one
        "description": f"Lodger router on {host.name} (pool {pool.name})",
    }
    # Its workers change while it runs. The file has them for the next start; a change of them is no reason to restart.
    changing = {"worker_urls": ()}
    service, files = _with_files(service, context, (router.restart_burst, router.restart_delay_s), key, changing)
    if not pool.vrrp:
        return service, files
    address = environment(str).get_template("keepalived.conf.j2")
    text = address.render(host=host, router=router, pool=pool, services=paths.SERVICES)
    return service, (*files, File(f"{name}/keepalived.conf", text))


def _names(kind: str, name: str) -> dict[str, Any]:
    """Return the names of a service: ours, systemd's and Docker's; its files are not hashed yet."""
    full = f"{paths.PREFIX}{name}"
    return {"name": name, "kind": kind, "unit": f"{full}.service", "container": full, "config": ""}


def _with_files(
    service: Service,
    context: Mapping[str, object],
    restarts: tuple[int, int],
    key: ApiKey | None,
    changing: Mapping[str, object] = MappingProxyType({}),
) -> tuple[Service, tuple[File, ...]]:
    """Return the service with the hash of its files, and the files; ``changing`` values are not part of the hash.

    ``restarts`` are the starts within one interval after which a crash loop ends as failed, and the pause between them (s).
    """
    template = environment(compose_value).get_template(f"{service.engine}/{service.kind}.compose.yml.j2")
    places = {"name": service.container, "service": service.name, "services": paths.SERVICES, "keys": paths.KEYS}
    whole = {**places, "key": key, **context}
    starter = (TEMPLATES / service.engine / "starter.py").read_text(encoding="utf-8") if key else ""

    def files(config: str, **other: object) -> tuple[File, ...]:
        compose = File(f"{service.name}/compose.yml", template.render({**whole, **other}, config=config))
        return compose, _unit_file(service, context, restarts), *([File(f"{service.name}/starter.py", starter)] if key else [])

    config = hash_of(files("", **changing))
    return replace(service, config=config), files(config)


def _unit_file(service: Service, context: Mapping[str, object], restarts: tuple[int, int]) -> File:
    burst, delay = restarts
    worker = service.kind == "worker"
    text = (
        environment(unit_text)
        .get_template("service.j2")
        .render(
            host=context["host"],
            name=service.container,
            description=context["description"],
            compose=f"{paths.SERVICES}/{service.name}/compose.yml",
            record=f"{paths.PAUSED}/{service.container}" if worker else "",
            container_service="engine" if worker else service.kind,
            burst=burst,
            restart_delay_s=delay,
            prepare_timeout_s=_PREPARE_S,
            start_limit_interval_s=burst * (_PREPARE_S + int(service.start) + delay) + _SLACK_S,
            stop_timeout_s=int(service.stop) + _SLACK_S,
        )
    )
    return File(f"units/{service.unit}", text)
