"""The real sglang-router 0.2.4 in front of simulated workers behaves as in front of real ones."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.run import PATIENCE

from .engine_lab import ROOT, Client, Engine, Lab, expand, free_port, running_lab, wait_for

LOCK = ROOT / "lab" / "image" / "router.lock"
RECORDINGS = ROOT / "tests" / "recordings" / "router"
PREFIXES = 6


@pytest.fixture(scope="session")
def router_python() -> Path:
    """A virtual environment with the locked router, kept in the checkout's cache."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = ROOT / ".lab" / f"router-{digest}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        folder.parent.mkdir(exist_ok=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--only-binary", ":all:"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
        (folder / "complete").touch()
    return python


class Router(Client):
    """A running router."""

    def __init__(self, python: Path, log: Path, options: list[str]):
        self.port = free_port()
        self.log_path = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
                    "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), *options,
                ],
                stdout=output,
                stderr=output,
            )  # fmt: skip


@contextmanager
def routing(python: Path, lab: Lab, workers: list[Engine], *options: str) -> Iterator[Router]:
    """Run a router before these workers until it is ready with all of them."""
    urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
    router = Router(python, lab.folder / f"router-{time.monotonic_ns()}.log", ["--worker-urls", *urls, *options])
    try:
        wait_for(lambda: healthy(router) == len(workers), f"all workers are healthy; see {router.log_path}")
        yield router
    finally:
        router.process.terminate()
        router.process.wait(PATIENCE)


def healthy(router: Router) -> int:
    """Return how many workers the router counts as healthy."""
    status, body = router.get("/workers")
    if status != 200:
        return 0
    return sum(worker["is_healthy"] for worker in json.loads(body)["workers"])


def prompt(number: int) -> str:
    """Return one of the six prefixes of the recorded test, in its full length."""
    body = (RECORDINGS / "cache_aware" / f"req_p{number}_1.req").read_bytes().partition(b"\r\n\r\n")[2]
    return expand(json.loads(body)["messages"][0]["content"])


def ask(server: Client, text: str) -> dict[str, Any]:
    """Ask with thinking off; returns the usage."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    status, answer = server.post("/v1/chat/completions", {"model": "qwen3.8-27b", **body})
    assert status == 200, answer
    return dict(answer["usage"])


def prefills(worker: Engine) -> list[tuple[int, int]]:
    """Return (new, cached) tokens of each prefill a worker logged, without the probes."""
    found = re.findall(r"#new-token: (\d+), #cached-token: (\d+)", worker.log)
    return [(int(new), int(cached)) for new, cached in found if (new, cached) != ("1", "0")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running_lab(tmp_path, count=8, clock=200) as lab:
        yield lab


@pytest.fixture
def workers(lab: Lab) -> list[Engine]:
    started = [lab.start(f"{lab.seed_options()} --base-gpu-id {4 * number}") for number in range(2)]
    return [worker.ready() for worker in started]


def attribute(router: Router, workers: list[Engine]) -> tuple[list[int], int]:
    """Send six unique prefixes twice each; returns the worker of each first send and how many second sends hit the cache."""
    first, hits = [], 0
    for number in range(PREFIXES):
        before = [len(prefills(worker)) for worker in workers]
        ask(router, prompt(number))
        grown = [len(prefills(worker)) > count for worker, count in zip(workers, before, strict=True)]
        assert sum(grown) == 1, "one worker's log tells who answered"
        first.append(grown.index(True))
    for number in range(PREFIXES):
        usage = ask(router, prompt(number))
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        hits += cached > 0.9 * usage["prompt_tokens"]
    return first, hits


def test_the_router_registers_workers_as_it_registers_real_ones(router_python: Path, lab: Lab, workers: list[Engine]) -> None:
    with routing(router_python, lab, workers) as router:
        listed = router.json("/workers")["workers"]
        assert {worker["model_id"] for worker in listed} == {"qwen3.8-27b"}
        assert {worker["metadata"]["model_type"] for worker in listed} == {"qwen3_5"}
        assert router.json("/v1/models")["data"][0]["id"] == "qwen3.8-27b"
        loads = router.json("/get_loads")["workers"]
        assert [worker["load"] for worker in loads] == [0, 0]
        assert b"sglang_num_running_reqs" in router.get("/engine_metrics")[1], "it renames the workers' metrics"
        assert ask(router, "What is 17+25?")["completion_tokens"] > 0


def test_cache_aware_sends_every_prefix_back_where_it_was(router_python: Path, lab: Lab, workers: list[Engine]) -> None:
    with routing(router_python, lab, workers, "--policy", "cache_aware") as router:
        first, hits = attribute(router, workers)
    assert hits == PREFIXES, "recorded: 6 of 6"
    assert len(set(first)) == 1, "recorded: sent one after another, all go to one worker"
    assert len(prefills(workers[1 - first[0]])) <= 1, "the other saw no more than its warm-up"


# The order in which the recorded twelve requests were sent, and what came of them: router-0.2.4, round_robin and cache_aware.
ROUND_ROBIN_ORDER = [3, 4, 5, 1, 0, 2, 4, 1, 2, 5, 0, 3]
CACHE_AWARE_ORDER = [2, 1, 4, 3, 4, 1, 0, 2, 5, 0, 5, 3]


@pytest.mark.parametrize(
    ("policy", "order", "recorded"), [("round_robin", ROUND_ROBIN_ORDER, 2), ("cache_aware", CACHE_AWARE_ORDER, PREFIXES)]
)
def test_in_the_recorded_order_as_many_second_sends_hit_as_were_recorded(
    router_python: Path, lab: Lab, workers: list[Engine], policy: str, order: list[int], recorded: int
) -> None:
    with routing(router_python, lab, workers, "--policy", policy) as router:
        hits, seen = 0, set()
        for number in order:
            usage = ask(router, prompt(number))
            cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
            hits += number in seen and cached > 0.9 * usage["prompt_tokens"]
            seen.add(number)
    assert hits == recorded


def test_sent_at_once_the_prefixes_are_spread(router_python: Path, lab: Lab, workers: list[Engine]) -> None:
    options = ("--policy", "cache_aware", "--balance-abs-threshold", "1", "--balance-rel-threshold", "1.0")
    with routing(router_python, lab, workers, *options) as router, ThreadPoolExecutor(PREFIXES) as pool:
        list(pool.map(lambda number: ask(router, prompt(number)), range(PREFIXES)))
    assert all(len(prefills(worker)) > 1 for worker in workers)


def test_a_killed_worker_is_noticed_and_comes_back(router_python: Path, lab: Lab, workers: list[Engine]) -> None:
    options = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1")
    with routing(router_python, lab, workers, *options, "--disable-circuit-breaker") as router:
        victim = workers[0]
        victim.kill()
        wait_for(lambda: healthy(router) == 1, "the router counts one worker")
        for number in range(4):
            ask(router, f"{number} and on it goes")
        for number in range(PREFIXES):
            ask(router, prompt(number))
        back = lab.start(lab.seed_options(), victim.port).ready()
        wait_for(lambda: healthy(router) == 2, "the router counts two workers again")
        before = len(prefills(back))
        for number in range(PREFIXES):
            ask(router, prompt(number))
        assert len(prefills(back)) == before, "recorded: membership is back, load is not; known prefixes stay with the survivor"


def test_a_stream_broken_by_a_kill_has_no_end(router_python: Path, lab: Lab, workers: list[Engine]) -> None:
    with routing(router_python, lab, workers[:1]) as router:
        body = json.dumps(
            {
                "model": "qwen3.8-27b",
                "messages": [{"role": "user", "content": "Explain"}],
                "stream": True,
                "max_tokens": 20000,
                "ignore_eos": True,
            }
        ).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(router.raw, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            wait_for(lambda: (workers[0].metric("sglang:num_running_reqs") or 0) > 0, "the stream runs")
            os.kill(workers[0].process.pid, 9)
            answer = stream.result(PATIENCE)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"data: " in answer
        assert b"[DONE]" not in answer, "recorded: HTTP 200, no [DONE], no error event, no final chunk"
        assert not answer.endswith(b"0\r\n\r\n")


def test_the_lock_pins_the_router_that_was_recorded() -> None:
    assert re.search(r"^sglang-router==0\.2\.4 ", LOCK.read_text(), re.MULTILINE)
    assert sys.version_info >= (3, 11)
