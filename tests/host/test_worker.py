"""Each worker is what the inventory declares, as systemd, Docker, the sockets and the GPUs tell it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host

import lodger.inventory
from lodger.inventory import EngineSettings, Fleet, Worker

Inspected = dict[str, Any]


@pytest.fixture(scope="module")
def worker(inventory_host: lodger.inventory.Host, worker_name: str) -> Worker:
    return inventory_host.workers[worker_name]


@pytest.fixture(scope="module")
def engine(fleet: Fleet, worker: Worker) -> EngineSettings:
    return fleet.settings(worker)


@pytest.fixture(scope="module")
def unit(host: Host, worker_name: str) -> dict[str, str]:
    wanted = "ActiveState,SubState,UnitFileState,ExecMainStartTimestampMonotonic"
    shown = host.check_output("systemctl show -p %s %s", wanted, f"lodger-worker-{worker_name}.service")
    return dict(line.split("=", 1) for line in shown.splitlines())


@pytest.fixture(scope="module")
def container(host: Host, worker_name: str) -> Inspected:
    """The one running container of the Compose project that the worker's unit runs."""
    project = f"label=com.docker.compose.project=lodger-worker-{worker_name}"
    found = json.loads(host.check_output("docker ps -q --no-trunc --filter %s | xargs -r docker inspect", project) or "[]")
    assert len(found) == 1, f"{len(found)} containers run for lodger-worker-{worker_name}"
    inspected: Inspected = found[0]
    return inspected


def option(container: Inspected, name: str) -> str | None:
    """Return what the running command line says for an option, None when it does not."""
    words = container["Args"]
    return words[words.index(name) + 1] if name in words else None


def address(container: Inspected) -> str:
    if container["HostConfig"]["NetworkMode"] == "host":
        return "127.0.0.1"
    return next(str(network["IPAddress"]) for network in container["NetworkSettings"]["Networks"].values())


def test_unit_is_active_and_comes_back_after_a_reboot(unit: dict[str, str]) -> None:
    stands = f"{unit['ActiveState']} {unit['SubState']} {unit['UnitFileState']}"
    assert stands == "active running enabled", f"the unit is {stands}"


def test_container_was_started_by_the_unit_as_it_runs_now(host: Host, unit: dict[str, str], container: Inspected) -> None:
    started, now, uptime = host.check_output(
        "date -d %s +%%s; date +%%s; cut -d' ' -f1 /proc/uptime", container["State"]["StartedAt"]
    ).splitlines()
    unit_started = float(now) - (float(uptime) - int(unit["ExecMainStartTimestampMonotonic"]) / 1e6)
    assert float(started) >= unit_started - 5, "the container is older than the unit's present run"
    files = container["Config"]["Labels"]["com.docker.compose.project.config_files"]
    assert files.startswith("/opt/lodger/")


def test_systemd_alone_restarts_it(container: Inspected) -> None:
    assert container["HostConfig"]["RestartPolicy"]["Name"] in ("no", "")


def test_container_runs_the_declared_image(host: Host, fleet: Fleet, worker: Worker, container: Inspected) -> None:
    image = fleet.images[fleet.pools[worker.pool].image]
    known_as = json.loads(host.check_output("docker image inspect -f '{{json .RepoDigests}}' %s", container["Image"]))
    assert any(name.endswith(f"@{image.digest}") for name in known_as), known_as


def test_command_line_carries_the_declared_settings(
    fleet: Fleet, worker: Worker, engine: EngineSettings, container: Inspected
) -> None:
    model = fleet.models[fleet.pools[worker.pool].model]
    draft = engine.draft
    declared = {
        "--served-model-name": model.served_name,
        "--tp-size": str(len(worker.gpus)),
        "--port": str(worker.port),
        "--context-length": str(engine.context_length),
        "--chunked-prefill-size": str(engine.chunked_prefill_size),
        "--max-running-requests": str(engine.max_running_requests),
        "--reasoning-parser": engine.reasoning_parser,
        "--tool-call-parser": engine.tool_call_parser,
        "--speculative-algorithm": draft.algorithm if draft else None,
        "--speculative-draft-model-quantization": draft.quantization if draft else None,
    }
    assert {name: option(container, name) for name in declared} == declared
    assert float(option(container, "--mem-fraction-static") or 0) == engine.mem_fraction_static


def test_port_leads_to_the_container(host: Host, worker: Worker, container: Inspected) -> None:
    listeners = host.check_output(
        "for pid in $(ss -Hltnp 'sport = :%s' | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u); do "
        'printf "%%s | %%s\\n" "$(tr "\\000" " " < /proc/$pid/cmdline)" "$(tr "\\n" " " < /proc/$pid/cgroup)"; done',
        str(worker.port),
    ).splitlines()
    proxy = f"-container-ip {address(container)} -container-port {worker.port}"
    strangers = [line for line in listeners if container["Id"] not in line and not ("docker-proxy" in line and proxy in line)]
    assert strangers == [], "somebody else listens on the worker's port"
    published = container["NetworkSettings"]["Ports"].get(f"{worker.port}/tcp") or []
    # Docker may be set up without its proxy: then nobody listens, and its own table says where the port leads.
    assert listeners or str(worker.port) in [port["HostPort"] for port in published]


def test_it_uses_the_declared_gpus_and_no_others(host: Host, worker: Worker, container: Inspected) -> None:
    seen = host.check_output(
        "nvidia-smi --query-gpu=uuid,index --format=csv,noheader | sed 's/^/gpu /'; "
        "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader | while IFS=', ' read -r uuid pid; do "
        'echo "app $uuid, $(tr "\\n" " " < /proc/$pid/cgroup)"; done'
    ).splitlines()
    index = dict(line.removeprefix("gpu ").split(", ") for line in seen if line.startswith("gpu "))
    ours = {line.removeprefix("app ").split(",")[0] for line in seen if line.startswith("app ") and container["Id"] in line}
    assert sorted(int(index[uuid]) for uuid in ours) == sorted(worker.gpus)


def test_it_is_healthy_at_its_own_address(host: Host, worker: Worker, container: Inspected) -> None:
    url = f"http://{address(container)}:{worker.port}/health"
    status = host.run("curl -s -o /dev/null -w '%%{http_code}' --noproxy '*' --max-time 30 %s", url).stdout
    assert status == "200", f"{url} answers {status}"


def test_as_many_requests_run_at_once_as_declared(
    host: Host, fleet: Fleet, worker: Worker, engine: EngineSettings, container: Inspected
) -> None:
    # Only this figure leaves the host: the rest of /server_info holds the server's keys.
    key = f"-H @/etc/lodger/keys/{worker.pool}" if fleet.pools[worker.pool].api_key_file else ""
    told = host.run(
        f"curl -s --noproxy '*' --max-time 30 {key} %s | grep -o '\"effective_max_running_requests_per_dp\": *[0-9]*'",
        f"http://{address(container)}:{worker.port}/server_info",
    ).stdout
    running = sum(int(line.rpartition(":")[2]) for line in told.splitlines())
    assert running == engine.max_running_requests, f"{running} run at once: the engine capped what was declared"
