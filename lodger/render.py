"""Fleet and host to the files of one release. Pure: the same inventory and templates give the same bytes anywhere.

Values reach a file through the template's environment, which quotes each of them for that kind of file: nothing that the
inventory accepts can mean more to Compose or systemd than the text it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lodger import command, keys, paths
from lodger.errors import InventoryError
from lodger.inventory import Fleet, Host, Image, Router, Worker
from lodger.keys import ApiKey

_TEMPLATES = Path(__file__).parent.parent / "templates"
_PREPARE_S = 300  # waiting for Docker and clearing a leftover, before the engine itself starts
_SLACK_S = 60  # a limit that is meant to lie beyond a sum of others lies this far beyond it


@dataclass(frozen=True)
class File:
    """One file of a release; ``path`` is relative to the release's folder."""

    path: str
    content: str
    mode: int = 0o644


@dataclass(frozen=True)
class Service:
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


@dataclass(frozen=True)
class Release:
    """Everything that Lodger puts on one host."""

    host: str
    services: tuple[Service, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """All files, ordered by path."""
        return tuple(sorted((file for service in self.services for file in service.files), key=lambda f: f.path))

    @property
    def id(self) -> str:
        """Name of the release: the beginning of the hash of all its paths, modes and contents."""
        return _hash(self.files)


def render(fleet: Fleet, host: Host) -> Release:
    """Return the release of one host.

    Raises InventoryError when an image that the host needs has no digest yet.
    """
    services = [_worker(fleet, host, worker) for _, worker in sorted(host.workers.items())]
    if host.router is not None:
        services.append(_router(fleet, host, host.router))
    return Release(host.name, tuple(services))


def router_beside(fleet: Fleet, host: Host, policy: str, port: int, metrics_port: int) -> Service:
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


def _worker(fleet: Fleet, host: Host, worker: Worker) -> Service:
    pool, engine = fleet.pools[worker.pool], fleet.settings(worker)
    model = fleet.models[pool.model]
    draft_model = fleet.models[engine.draft.model] if engine.draft and engine.draft.model else None
    image = fleet.images[pool.image]
    gpus = " ".join(map(str, worker.gpus))
    path = f"/models/{model.directory}"
    # Some other tokenizer can only come with a further option; of two, the engine takes the last.
    words = [word for argument in engine.extra_args for word in argument.split("=", 1)]
    tokenizer = next((value for name, value in reversed([*pairwise(words)]) if name == "--tokenizer-path"), path)
    version = engine_version(image)
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
        key=keys.of(fleet, pool.name),
        pool=pool.name,
        listen=worker.listen,
        address=reached(host),
        identity={
            "served_model_name": model.served_name or pool.model,
            "model_path": path,
            "weight_version": model.revision or "default",
            "tokenizer_path": tokenizer,
            "context_length": str(engine.context_length),
            "reasoning_parser": engine.reasoning_parser or "null",
            "tool_call_parser": engine.tool_call_parser or "null",
            **({"version": version} if version else {}),
        },
    )


def engine_version(image: Image) -> str:
    """Return the engine's version as it tells it itself, by its image's tag (``v0.5.19-cu129``), "" for a tag without one."""
    found = re.match(r"v?(\d+(\.\d+)+(\.?(post|dev|rc)\d+)?)(-|$)", image.tag)
    return found[1] if found else ""


def _router(fleet: Fleet, host: Host, router: Router, name: str = "router") -> Service:
    pool = fleet.pools[router.pool]
    if pool.router_image is None:
        raise InventoryError(f"pool {pool.name} has no router_image", host=host.name)
    image = fleet.images[pool.router_image]
    urls = worker_urls(fleet, host, pool.name)
    address = _environment(str).get_template("keepalived.conf.j2")
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
        key=keys.of(fleet, pool.name),
        pool=pool.name,
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
    changing: Mapping[str, object] = MappingProxyType({}),
    more: tuple[File, ...] = (),
) -> Service:
    full_name = f"lodger-{name}"
    compose_path = f"{name}/compose.yml"
    unit = _environment(_unit_text).get_template("service.j2")
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
    compose = _environment(_compose_value).get_template(f"{kind}.compose.yml.j2")

    context = {"name": full_name, "service": name, "key": key, "services": paths.SERVICES, "keys": paths.KEYS} | context
    starter = (File(f"{name}/starter.py", (_TEMPLATES / "starter.py").read_text(encoding="utf-8")),) if key else ()

    def files(config: str, **other: object) -> tuple[File, ...]:
        return File(compose_path, compose.render({**context, **other}, config=config)), unit_file, *starter

    # What is beside the service, and is no reason to restart it, comes after the hash.
    config_hash = _hash(files("", **changing))
    return Service(
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
    )


def _hash(files: Iterable[File]) -> str:
    listing = json.dumps([[file.path, file.mode, file.content] for file in files])
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


# ---------------------------------------------------------------- quoting


class _Ready(str):
    """Text that is already as the file needs it."""

    __slots__ = ()


def _compose_value(value: object) -> str:
    """Quote one value for a Compose file: JSON is YAML, and Compose replaces every ``$NAME`` unless it is doubled."""
    if isinstance(value, _Ready):
        return value
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, with the name that the template got wrong
    if not isinstance(value, str | int | list):
        raise TypeError(f"a template prints {value!r}, which is neither text nor a whole number nor a list")
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")


def _unit_text(value: object) -> str:
    """Quote one value for a setting of a unit that takes plain text: only ``%`` means something there."""
    return value if isinstance(value, _Ready) else str(value).replace("%", "%%")


def shell_word(value: object) -> str:
    """Quote one value for a sh script: text, a number, or a list of words; each word stands for itself."""
    if isinstance(value, _Ready):
        return value
    return command.quote([str(one) for one in value] if isinstance(value, list | tuple) else [str(value)])


def script(template: str, **context: object) -> str:
    """Return a rendered sh script; what a value holds is text to the shell, unless the template marks it `raw`."""
    return _environment(shell_word).get_template(template).render(context)


def unit(template: str, **context: object) -> str:
    """Return a rendered unit file whose settings take plain text."""
    return _environment(_unit_text).get_template(template).render(context)


def exec_word(value: str) -> str:
    """Quote one word of a unit's ``Exec...=`` line: quotes, backslashes, ``%`` specifiers and ``$`` variables."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return _Ready(f'"{escaped}"')


def word(value: float | str) -> str:
    """Return a number as a word of a command line; fractions with two digits at least, as people write them."""
    if isinstance(value, float):
        return f"{value:.2f}" if round(value, 2) == value else repr(value)
    return str(value)


@cache
def _environment(quote: Callable[[object], str]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        finalize=quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # nothing here is HTML; `finalize` quotes every value
    )
    environment.filters |= {"exec": exec_word, "raw": _Ready, "word": word}
    return environment
