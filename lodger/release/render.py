"""Fleet and host to the files of one release. Pure: the same inventory and templates give the same bytes anywhere.

Values reach a file through the template's environment, which quotes each of them for that kind of file: nothing that the
inventory accepts can mean more to Compose or systemd than the text it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from lodger.engines import engine_in
from lodger.errors import InventoryError
from lodger.host import paths
from lodger.inventory import Fleet, Host, Router, Worker
from lodger.release import api_keys
from lodger.release.api_keys import ApiKey
from lodger.release.quoting import TEMPLATES, compose_value, environment, unit_text
from lodger.release.service import File, Release, RenderedService, hash_of

_PREPARE_S = 300  # waiting for Docker and clearing a leftover, before the engine itself starts
_SLACK_S = 60  # a limit that is meant to lie beyond a sum of others lies this far beyond it


def render(fleet: Fleet, host: Host) -> Release:
    """Return the release of one host.

    Raises InventoryError when an image that the host needs has no digest yet.
    """
    services = [_worker(fleet, host, worker) for _, worker in sorted(host.workers.items())]
    if host.router is not None:
        services.append(_router(fleet, host, host.router))
    return Release(host.name, tuple(services))


def router_beside(fleet: Fleet, host: Host, policy: str, port: int, metrics_port: int) -> RenderedService:
    """Return a second router of the same image and options beside that of ``host``, with another policy, on loopback only.

    Its container and Compose project are lodger-router-probe; it is no part of a release.
    """
    if host.router is None:
        raise InventoryError("there is no router here", host=host.name)
    local = "127.0.0.1"
    router = host.router.model_copy(
        update={"port": port, "listen": local, "prometheus_port": metrics_port, "prometheus_listen": local}
    )
    pool = fleet.pools[router.pool]
    routing = pool.routing.model_copy(update={"policy": policy})
    pools = {**fleet.pools, pool.name: pool.model_copy(update={"routing": routing})}
    return _router(fleet.model_copy(update={"pools": pools}), host, router, "router-probe")


def worker_urls(fleet: Fleet, host: Host, pool: str) -> tuple[str, ...]:
    """Return the URLs at which a router on ``host`` reaches each worker of a pool, ordered by host and worker."""
    return tuple(url(host.name, other, worker.listen, worker.port) for other, worker in fleet.pool_workers(pool))


def url(seen_from: str, host: Host, listen: str, port: int, address: str = "") -> str:
    """Return the URL at which a program on the host ``seen_from`` reaches what listens on ``host``.

    ``address`` is one at which other hosts reached ``host`` when that was not yet what the inventory says now.
    """
    here = "127.0.0.1" if listen == "0.0.0.0" else listen  # noqa: S104  # compared, not bound
    address = here if host.name == seen_from else address or reached(host)
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def reached(host: Host) -> str:
    """Return the address at which other hosts reach ``host``."""
    return host.service_address or host.address


def _worker(fleet: Fleet, host: Host, worker: Worker) -> RenderedService:
    pool, engine = fleet.pools[worker.pool], fleet.settings(worker)
    model = fleet.models[pool.model]
    draft_model = fleet.models[engine.draft.model] if engine.draft and engine.draft.model else None
    image = fleet.images[pool.image]
    gpus = " ".join(map(str, worker.gpus))
    return _service(
        "worker",
        f"worker-{worker.name}",
        image=image.reference,
        port=worker.port,
        gpus=worker.gpus,
        start_timeout_s=engine.start_timeout_s,
        stop_timeout_s=engine.stop_timeout_s,
        burst=engine.restart_burst,
        restart_delay_s=engine.restart_delay_s,
        description=f"Lodger worker {worker.name} on {host.name} ({model.served_name} on GPUs {gpus})",
        context={
            "host": host,
            "worker": worker,
            "engine": engine,
            "model": model,
            "draft_model": draft_model,
            "image": image,
        },
        key=api_keys.of(fleet, pool.name),
        pool=pool.name,
        engine=engine_in(image).name,
        listen=worker.listen,
        address=reached(host),
        identity=engine_in(image).identity(fleet, worker),
    )


def _router(fleet: Fleet, host: Host, router: Router, name: str = "router") -> RenderedService:
    pool = fleet.pools[router.pool]
    if pool.router_image is None:
        raise InventoryError(f"pool {pool.name} has no router_image", host=host.name)
    image = fleet.images[pool.router_image]
    urls = worker_urls(fleet, host, pool.name)
    address = environment(str).get_template("keepalived.conf.j2")
    return _service(
        "router",
        name,
        more=(File(f"{name}/keepalived.conf", address.render(host=host, router=router, pool=pool)),) if pool.vrrp else (),
        image=image.reference,
        port=router.port,
        gpus=(),
        start_timeout_s=router.start_timeout_s,
        stop_timeout_s=pool.stop_timeout_s,
        burst=router.restart_burst,
        restart_delay_s=router.restart_delay_s,
        description=f"Lodger router on {host.name} (pool {pool.name})",
        # One beside it has its starter from the folder of the deployed one.
        context={"host": host, "router": router, "pool": pool, "image": image, "worker_urls": urls, "service": "router"},
        # Who is behind it changes while it runs: its file says it for the next start, and that is no reason for one.
        changing={"worker_urls": ()},
        key=api_keys.of(fleet, pool.name),
        pool=pool.name,
        engine=engine_in(image).name,
        listen=router.listen,
        address=reached(host),
        identity={},
    )


def _service(
    kind: Literal["worker", "router"],
    name: str,
    *,
    image: str,
    port: int,
    gpus: tuple[int, ...],
    start_timeout_s: int,
    stop_timeout_s: int,
    burst: int,
    restart_delay_s: int,
    description: str,
    context: dict[str, object],
    key: ApiKey | None,
    pool: str,
    listen: str,
    identity: Mapping[str, str],
    address: str,
    engine: str,
    changing: Mapping[str, object] = MappingProxyType({}),
    more: tuple[File, ...] = (),
) -> RenderedService:
    full_name = f"lodger-{name}"
    compose_path = f"{name}/compose.yml"
    unit = environment(unit_text).get_template("service.j2")
    unit_file = File(
        f"units/{full_name}.service",
        unit.render(
            host=context["host"],
            name=full_name,
            description=description,
            compose=f"{paths.SERVICES}/{compose_path}",
            record=f"{paths.PAUSED}/{full_name}" if kind == "worker" else "",
            container_service="engine" if kind == "worker" else kind,
            burst=burst,
            restart_delay_s=restart_delay_s,
            prepare_timeout_s=_PREPARE_S,
            start_limit_interval_s=burst * (_PREPARE_S + start_timeout_s + restart_delay_s) + _SLACK_S,
            stop_timeout_s=stop_timeout_s + _SLACK_S,
        ),
    )
    compose = environment(compose_value).get_template(f"{engine}/{kind}.compose.yml.j2")

    context = {"name": full_name, "service": name, "key": key, "services": paths.SERVICES, "keys": paths.KEYS} | context
    starter = (File(f"{name}/starter.py", (TEMPLATES / engine / "starter.py").read_text(encoding="utf-8")),) if key else ()

    def files(config: str, **other: object) -> tuple[File, ...]:
        return File(compose_path, compose.render({**context, **other}, config=config)), unit_file, *starter

    # What is beside the service, and is no reason to restart it, comes after the hash.
    config_hash = hash_of(files("", **changing))
    return RenderedService(
        name=name,
        kind=kind,
        unit=f"{full_name}.service",
        files=(*files(config_hash), *more),
        config_hash=config_hash,
        container=full_name,
        image=image,
        port=port,
        gpus=gpus,
        start_timeout_s=start_timeout_s,
        stop_timeout_s=stop_timeout_s,
        pool=pool,
        listen=listen,
        identity=identity,
        address=address,
        key=key.mark if key else "",
        engine=engine,
    )
