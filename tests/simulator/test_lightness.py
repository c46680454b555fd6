"""Three workers and 64 streams on a small machine: little memory, and on time by their own clock."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import faults

from .engine_lab import Engine, filler, running_lab, wait_for

MEMORY_MIB = 60.0
STREAMS = 64
SECONDS = 8.0  # of streaming in real time


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def worker_memory(engine: Engine) -> float:
    return resident(engine.process.pid) + resident(engine.scheduler_pid())


@pytest.mark.alone  # it measures the machine
def test_three_workers_and_64_streams_stay_light_and_on_time(tmp_path: Path) -> None:
    with running_lab(tmp_path, count=12, clock=60) as lab:
        engines = [lab.start(f"{lab.seed_options()} --base-gpu-id {4 * number}") for number in range(3)]
        for engine in engines:
            engine.ready()
        # Real time from here on: the question is whether a twin on two cores keeps up with it.
        faults.set_clock(lab.control, 1)
        begun = time.monotonic()
        stop = threading.Event()
        tokens = [0] * STREAMS

        def stream(number: int) -> None:
            question = {"role": "user", "content": f"{filler(str(number), 400)} explain"}
            rest = {"stream": True, "ignore_eos": True, "max_tokens": 100_000}
            body = json.dumps({"messages": [question], **rest}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            with socket.create_connection(("127.0.0.1", engines[number % 3].port), 30) as connection:
                connection.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
                connection.settimeout(0.5)
                while not stop.is_set():
                    try:
                        tokens[number] += connection.recv(65536).count(b"data: ")
                    except TimeoutError:
                        continue

        with ThreadPoolExecutor(STREAMS) as pool:
            running = [pool.submit(stream, number) for number in range(STREAMS)]
            try:
                wait_for(lambda: sum(1 for count in tokens if count) >= 21, "21 streams run, the others wait", 30)
                time.sleep(SECONDS)
                memory = [worker_memory(engine) for engine in engines]
            finally:
                stop.set()
            for each in running:
                each.result()
        seconds = time.monotonic() - begun
        assert all(each < MEMORY_MIB for each in memory), memory
        behind = [line for engine in engines for line in engine.log.splitlines() if "behind its own clock" in line]
        assert not behind, behind
        assert sum(tokens) > 3 * 40 * min(seconds, SECONDS), "each worker gave at least 40 steps a second to its streams"


def test_long_prompts_leave_it_light(tmp_path: Path) -> None:
    with running_lab(tmp_path, clock=200) as lab:
        engine = lab.start(lab.seed_options()).ready()
        for number in range(4):
            engine.content(filler(f"{number}", 400_000))
        assert worker_memory(engine) < MEMORY_MIB


@pytest.mark.alone  # it measures the machine
def test_it_says_so_when_it_falls_behind_its_clock(tmp_path: Path) -> None:
    with running_lab(tmp_path, clock=100) as lab:
        engine = lab.start(lab.seed_options()).ready()
        scheduler = engine.scheduler_pid()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(engine.chat, "Explain in detail.", max_tokens=4000, ignore_eos=True)
            wait_for(lambda: engine.json("/v1/loads")["loads"][0]["num_running_reqs"] == 1, "it runs")
            os.kill(scheduler, signal.SIGSTOP)
            time.sleep(0.6)
            os.kill(scheduler, signal.SIGCONT)
            answer.result(60)
        assert "behind its own clock (x100): the machine is too busy" in engine.log
