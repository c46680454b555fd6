"""The smoke test against the simulated engine, started as the inventory says; then once for each setting that is broken.

Each broken setting must fail its own check and no other, and the check must name the setting.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lab.run import PATIENCE
from lodger.engines.client import Client
from lodger.engines.sglang.smoke import smoke
from lodger.engines.sglang.smoke_judgements import Expectation, SmokeCheck, SmokeReport
from lodger.inventory import Fleet, Host
from lodger.inventory.load import load
from lodger.release.render import render
from tests.unit import servers

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "lab" / "engine"
CLOCK = "60"  # times faster than real: a start takes a second or two


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    # 4 at once is below what the memory gives; how much exactly that is, is not the question here.
    return declaring(load(ROOT / "hosts"), max_running_requests=4)


@pytest.fixture(scope="module")
def models(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: their published description, and sparse files in place of weights."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in fleet.models.items():
        source, target = fleet.folder / "models" / name, folder / model.directory
        target.mkdir()
        shutil.copy(source / "config.json", target)
        tensors = json.loads((source / "tensors.json").read_text())
        shards = [f"model-{number}.safetensors" for number in range(tensors["shards"])]
        for shard in shards:
            with (target / shard).open("wb") as file:
                file.truncate(tensors["total_size"] // len(shards))
        index = {"metadata": {"total_size": tensors["total_size"]}, "weight_map": {shard: shard for shard in shards}}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def command_line(fleet: Fleet, host: Host, models: Path) -> list[str]:
    """Return the engine's arguments as they are rendered for worker a, with the models' folder and a port of the test's."""
    compose = next(file.content for file in render(fleet, host).files if file.path == "worker-a/compose.yml")
    words = [str(word).replace("$$", "$") for word in yaml.safe_load(compose)["services"]["engine"]["command"]]
    words = [word.replace("/models/", f"{models}/") for word in words]
    return replaced(replaced(words, "--port", str(free_port())), "--host", "127.0.0.1")


def replaced(words: list[str], option: str, value: str) -> list[str]:
    at = words.index(option)
    return [*words[: at + 1], value, *words[at + 2 :]]


def without(words: list[str], option: str) -> list[str]:
    at = words.index(option)
    return words[:at] + words[at + 2 :]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextlib.contextmanager
def engine(words: list[str], gpus: int, folder: Path, faults: list[dict[str, object]]) -> Iterator[Client]:
    """Run the simulated engine until the block ends, with faults to act out; yield a client of it once it is healthy."""
    devices, control, log = folder / "dev", folder / "control", folder / "engine.log"
    devices.mkdir()
    control.mkdir()
    (control / "clock").write_text(CLOCK)
    (control / "faults.json").write_text(json.dumps(faults))
    for index in range(gpus):
        gpu = {
            "index": index,
            "name": "NVIDIA GeForce RTX 3090",
            "uuid": f"GPU-{index:08d}",
            "memory_mib": 24576,
            "compute_capability": "8.6",
            "driver": "580.126.09",
        }
        (devices / f"nvidia{index}").write_text(json.dumps(gpu) + "\n")
    for name in ("nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": str(ENGINE), "SIM_DEV_DIR": str(devices), "SIM_CONTROL_DIR": str(control)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        client = Client(f"http://127.0.0.1:{words[words.index('--port') + 1]}")
        deadline = time.monotonic() + PATIENCE
        while not client.get("/health", 25).ok:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


class Lossy:
    """Carries connections to an engine, but closes so many of those with a large request without an answer."""

    def __init__(self, port: int, losses: int) -> None:
        self.port = port
        self.losses = losses
        self.lock = threading.Lock()

    def __call__(self, connection: socket.socket) -> None:
        request = servers.whole(connection)
        with self.lock:
            lost = len(request) > 300_000 and self.losses > 0
            self.losses -= lost
        if lost:
            return
        with socket.create_connection(("127.0.0.1", self.port)) as far:
            far.sendall(request)
            while data := far.recv(65536):
                connection.sendall(data)


Smoked = Callable[..., SmokeReport]


@pytest.fixture
def smoked(fleet: Fleet, models: Path, tmp_path: Path) -> Smoked:
    """Smoke worker a of node1.

    ``change`` alters the engine's command line, ``declared`` is another inventory, ``between`` stands before the engine's port.
    """

    def run(
        change: Callable[[list[str]], list[str]] = list,
        declared: Fleet = fleet,
        faults: tuple[dict[str, object], ...] = (),
        min_kv_tokens: int = 50_000,
        between: Callable[[int], servers.Behaviour] | None = None,
    ) -> SmokeReport:
        host = declared.hosts["node1"]
        words = change(command_line(declared, host, models))
        with engine(words, host.gpus.count, tmp_path, list(faults)) as client:
            expected = Expectation.of(declared, host, host.workers["a"], min_kv_tokens)
            if between is None:
                return smoke(client, expected)
            with servers.serving(between(int(words[words.index("--port") + 1]))) as near:
                return smoke(Client(near.url), expected)

    return run


def declaring(fleet: Fleet, own: dict[str, object] | None = None, **settings: object) -> Fleet:
    """Return the fleet with other settings of the pool, and with ``own`` as all that worker a of node1 has of its own."""
    host, pool = fleet.hosts["node1"], fleet.pools["qwen38"]
    worker = host.workers["a"].model_copy(update={"engine": own or {}})
    return fleet.model_copy(
        update={
            "hosts": {**fleet.hosts, "node1": host.model_copy(update={"workers": {"a": worker}})},
            "pools": {**fleet.pools, "qwen38": pool.model_copy(update=settings)},
        }
    )


def told(checks: tuple[SmokeCheck, ...]) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in checks]


def test_a_worker_that_serves_what_is_declared_passes(smoked: Smoked) -> None:
    report = smoked()
    assert told(report.failures) == []
    names = {check.name for check in report.checks}
    assert names == {
        *("model name", "context length", "concurrency", "KV pool", "chat", "thinking", "tool call", "streaming"),
        *("image", "over-long prompt", "draft", "long prompts"),
    }
    assert "42" in report.reply
    assert report.ttft_s is not None
    assert report.tokens_per_s is not None


@pytest.mark.parametrize(
    ("change", "failing", "setting"),
    [
        (lambda words: without(words, "--tool-call-parser"), "tool call", "pools.qwen38.tool_call_parser"),
        (lambda words: without(words, "--reasoning-parser"), "thinking", "pools.qwen38.reasoning_parser"),
        (lambda words: without(words, "--speculative-draft-model-quantization"), "draft", "pools.qwen38.draft"),
        (lambda words: [*words, "--language-model-only"], "image", "pools.qwen38.extra_args"),
        (lambda words: replaced(words, "--context-length", "65536"), "context length", "pools.qwen38.context_length"),
        (lambda words: replaced(words, "--mem-fraction-static", "0.85"), "long prompts", "pools.qwen38.mem_fraction_static"),
        (lambda words: replaced(words, "--served-model-name", "another"), "model name", "pools.qwen38.model"),
    ],
    ids=["no tool parser", "no reasoning parser", "dead draft", "no vision", "smaller context", "OOM", "another name"],
)
def test_a_broken_setting_fails_its_own_check_and_is_named(
    smoked: Smoked, change: Callable[[list[str]], list[str]], failing: str, setting: str
) -> None:
    report = smoked(change)
    assert [check.name for check in report.failures] == [failing], told(report.failures)
    assert report.failures[0].setting == setting


def test_an_engine_that_dies_at_a_long_prompt_only_is_found(smoked: Smoked) -> None:
    report = smoked(faults=({"fault": "oom_at_long_request", "tokens": 8000},))
    assert [check.name for check in report.failures] == ["long prompts"], told(report.failures)
    assert report.failures[0].setting == "pools.qwen38.mem_fraction_static"


def test_an_engine_that_talks_garbage_is_found(smoked: Smoked) -> None:
    report = smoked(faults=({"fault": "garbage"},))
    failing = {check.name: check for check in report.failures}
    assert failing["chat"].setting == failing["long prompts"].setting == "pools.qwen38.model"
    assert "streaming" not in failing, "shape and speed are right, which is why answers are checked"


def test_a_kv_pool_smaller_than_planned_is_named(smoked: Smoked) -> None:
    report = smoked(min_kv_tokens=10_000_000)
    assert [check.name for check in report.failures] == ["KV pool"], told(report.failures)


def test_a_concurrency_that_the_memory_does_not_give_is_named(smoked: Smoked, fleet: Fleet) -> None:
    report = smoked(declared=declaring(fleet, max_running_requests=48))
    assert [check.name for check in report.failures] == ["concurrency"], told(report.failures)
    assert report.failures[0].setting == "pools.qwen38.max_running_requests"


def test_a_tool_parser_taken_from_one_worker_is_named_there(smoked: Smoked, fleet: Fleet) -> None:
    report = smoked(declared=declaring(fleet, own={"tool_call_parser": None}))
    assert [check.name for check in report.failures] == ["tool call"], told(report.failures)
    assert report.failures[0].setting == "node1: workers.a.engine.tool_call_parser"


def test_one_connection_that_ends_without_an_answer_is_no_verdict(smoked: Smoked) -> None:
    report = smoked(between=lambda port: Lossy(port, losses=1))
    assert told(report.failures) == []
    (refused,) = (check for check in report.checks if check.name == "over-long prompt")
    assert refused.detail.startswith("refused with 400; asked again, a first connection ended without an answer (")


def test_two_of_them_in_a_row_are_told(smoked: Smoked) -> None:
    report = smoked(between=lambda port: Lossy(port, losses=4))
    assert [check.name for check in report.failures] == ["over-long prompt"], told(report.failures)
    assert "the connection failed twice in a row (closed without an answer" in report.failures[0].detail


def test_a_slow_port_changes_no_verdict(smoked: Smoked) -> None:
    report = smoked(between=lambda port: servers.relaying(port, bytes_per_s=300_000))
    assert told(report.failures) == []
