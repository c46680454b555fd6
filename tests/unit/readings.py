"""Hand-made readings of a host: values of facts with no text behind them, each builder a quiet default of one thing."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lodger.host import facts
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.deployed import Deployed, HostFile
from lodger.host.facts.docker import Container
from lodger.host.facts.gpu import Gpu
from lodger.host.facts.machine import ListeningPort, Process, Program, Unit
from lodger.host.facts.serving import Serving
from lodger.host.ownership import MARK
from lodger.release.service import Service

CAPTURED = Path(__file__).parent / "data/facts"
HOST = "node1"
OURS = {"io.lodger.host": HOST, "io.lodger.config": "c1"}


def captured(name: str) -> Facts:
    """Return what a twin's facts said: ``node1``, ``node2`` (both fresh) or ``deployed`` (node1 with a worker)."""
    return facts.parse((CAPTURED / f"{name}.txt").read_text(), HOST if name == "deployed" else name)


def readings(values: Mapping[Fact[Any], Any]) -> Facts:
    """Return facts that have these values."""
    read = Facts({fact.name: (0, "") for fact in values}, HOST)
    read._parsed.update({fact.name: value for fact, value in values.items()})  # what a parser would have put there
    return read


# What a manifest says of smoke.
SMOKE = {
    "pool": "qwen38",
    "served_name": "qwen3.8-27b",
    "context_length": 131072,
    "max_running_requests": 7,
    "reasoning_parser": "qwen3",
    "tool_call_parser": "qwen3_coder",
    "vision": True,
}


def base(**values: Any) -> dict[Fact[Any], Any]:
    """Return a host on which nothing is: ``containers``, ``units``, ``processes`` ... put something there."""
    return {
        facts.CONTAINERS: {one.name: one for one in values.get("containers", [])},
        facts.UNITS: {one.id: one for one in values.get("units", [])},
        facts.PROGRAMS: {one.name: one for one in values.get("programs", [])},
        facts.PORTS: tuple(values.get("ports", [])),
        facts.PROCESSES: {one.pid: one for one in values.get("processes", [])},
        facts.MOUNTS: values.get("mounts", {}),
        facts.DEPLOYED: values.get("deployed", deployed()),
    }


def container(name: str, **changes: Any) -> Container:
    """Return a running container of somebody else."""
    values: dict[str, Any] = {
        "id": (name.encode().hex() * 64)[:64],
        "image": "colleague/notebook:2024.1",
        "status": "running",
        "restart_policy": "no",
        "restart_count": 0,
        "started": "2026-11-29T13:57:45.8Z",
        "pid": 4000,
        "labels": {},
        "address": "172.17.0.3",
        "published": (),
    }
    return Container(name=name, **{**values, **changes})


def unit(name: str, **changes: Any) -> Unit:
    """Return an enabled service that runs."""
    values: dict[str, Any] = {
        "active": "active",
        "sub": "running",
        "file_state": "enabled",
        "fragment": f"/etc/systemd/system/{name}",
        "result": "success",
        "main_pid": 77,
        "restarts": 0,
        "started": "2062187906",
        "timer_driven": False,
        "type": "simple",
    }
    return Unit(id=name, **{**values, **changes})


def process(pid: int, **changes: Any) -> Process:
    """Return a process of a user in a login session."""
    values: dict[str, Any] = {
        "user": "alice",
        "command": "python3 train.py",
        "cgroup": "/user.slice/user-1000.slice/session-3.scope ",
        "parents": (900,),
        "devices": (),
        "program": "",
    }
    return Process(pid=pid, **{**values, **changes})


def in_container(pid: int, of: Container, **changes: Any) -> Process:
    """Return a process that runs in a container."""
    return process(pid, **{"user": "root", "cgroup": f"/system.slice/docker-{of.id}.scope ", **changes})


def proxy(pid: int, **changes: Any) -> Process:
    """Return the process that listens for Docker on a published port."""
    command = "/usr/bin/docker-proxy -proto tcp -host-port 30000"
    return process(pid, **{"user": "root", "command": command, "cgroup": "/system.slice/docker.service ", **changes})


def on_gpus(*indices: int) -> tuple[str, ...]:
    """Return the device files of GPUs."""
    return tuple(f"/dev/nvidia{index}" for index in indices)


def program(name: str, pid: int = 439, state: str = "RUNNING") -> Program:
    """Return a supervisord program."""
    return Program(name, state, pid)


def port(number: int, pid: int = 0, name: str = "", protocol: str = "tcp") -> ListeningPort:
    """Return a listening socket."""
    return ListeningPort(protocol, "0.0.0.0", number, name, pid)  # noqa: S104  a value, nothing listens


def driver(*used: int, loaded: str = "580.126.09", complaint: str = "", memory: int = 24576) -> facts.Driver:
    """Return a driver with one GPU for each number of MiB in use."""
    gpus = tuple(Gpu(index, "NVIDIA GeForce RTX 3090", memory, mib) for index, mib in enumerate(used))
    return facts.Driver(loaded, loaded, complaint, gpus)


def worker(name: str = "a", **changes: Any) -> Service:
    """Return worker ``name`` as a release defines it."""
    values: dict[str, Any] = {
        "name": f"worker-{name}",
        "kind": "worker",
        "unit": f"lodger-worker-{name}.service",
        "container": f"lodger-worker-{name}",
        "config": "c1",
        "image": "registry/sglang@sha256:1",
        "port": 30000,
        "gpus": (0, 1, 2, 3),
        "start": 900.0,
        "stop": 300.0,
    }
    return Service(**{**values, **changes})


def router(**changes: Any) -> Service:
    """Return the router as a release defines it."""
    values = {"kind": "router", "unit": "lodger-router.service", "container": "lodger-router", "gpus": (), "port": 30002}
    return replace(worker(), **{"name": "router", "image": "registry/router@sha256:2", **values, **changes})


def ours(service: Service, **changes: Any) -> Container:
    """Return the running container of a service of ours."""
    labels = {"io.lodger.host": HOST, "io.lodger.config": service.config}
    return container(service.container, **{"labels": labels, "published": (service.port,), **changes})


def serving(**changes: Any) -> Serving:
    """Return the readiness of a worker that serves."""
    values: dict[str, Any] = {"address": "172.17.0.2", "port": 30000, "config": "c1", "health": 200, "log": ""}
    return Serving(**{"container": "f" * 64, **values, **changes})


def unit_text(service: Service) -> str:
    """Return a unit file of ours, short."""
    return f"{MARK}{HOST}\n[Unit]\nDescription={service.name} {service.config}\n"


def release_files(release: str, *services: Service, revision: str = "r1") -> dict[str, HostFile]:
    """Return the files of a stored release, manifest included."""
    root = f"/opt/lodger/releases/{release}"
    data = {
        "release": release,
        "host": HOST,
        "revision": revision,
        "services": [asdict(service) for service in services],
        "smoke": {service.name: SMOKE for service in services},
    }
    files = {f"{root}/manifest.json": HostFile(json.dumps(data), 0o644, "root")}
    for service in services:
        files[f"{root}/units/{service.unit}"] = HostFile(unit_text(service), 0o644, "root")
        files[f"{root}/{service.name}/compose.yml"] = HostFile(f"# {service.config}\n", 0o644, "root")
    return files


def deployed(
    history: tuple[str, ...] = (),
    *,
    stored: tuple[str, ...] | None = None,
    links: Mapping[str, str] | None = None,
    files: Mapping[str, HostFile] | None = None,
    current: str | None = None,
    keys: tuple[str, ...] = (),
) -> Deployed:
    """Return our own files; ``current`` is the last of the history unless said otherwise."""
    last = history[-1] if history else ""
    everything = tuple(dict.fromkeys(history)) if stored is None else stored
    return Deployed(last if current is None else current, history, everything, links or {}, files or {}, keys)


def installed(release: str, *services: Service) -> dict[str, HostFile]:
    """Return the files of a release whose units are installed."""
    files = release_files(release, *services)
    return files | {f"/etc/systemd/system/{service.unit}": HostFile(unit_text(service), 0o644, "root") for service in services}


def record(name: str, content: str) -> dict[str, HostFile]:
    """Return a file below /var/lib/lodger."""
    return {f"/var/lib/lodger/{name}": HostFile(content, 0o644, "root")}
