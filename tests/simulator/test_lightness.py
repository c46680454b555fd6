"""Three workers and 64 streams: little memory, and little enough work for a small machine to keep up with their clock."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import faults
from lab.run import PATIENCE

from .engine_lab import Engine, filler, running_lab, wait_for

MEMORY_MIB = 60.0
STREAMS = 64
TOKENS = 2000  # that are counted


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def worker_memory(engine: Engine) -> float:
    return resident(engine.process.pid) + resident(engine.scheduler_pid())


def work(engine: Engine) -> float:
    """Return the processor seconds that an engine has used."""
    used = 0
    for pid in (engine.process.pid, engine.scheduler_pid()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def test_three_workers_and_64_streams_are_light_work(tmp_path: Path) -> None:
    with running_lab(tmp_path, count=12, clock=60) as lab:
        engines = [lab.start(f"{lab.seed_options()} --base-gpu-id {4 * number}") for number in range(3)]
        for engine in engines:
            engine.ready()
        # Real time from here on: the question is whether a twin on two cores keeps up with it.
        faults.set_clock(lab.control, 1)
        stop = threading.Event()
        tokens = [0] * STREAMS

        def stream(number: int) -> None:
            question = {"role": "user", "content": f"{filler(str(number), 400)} explain"}
            rest = {"stream": True, "ignore_eos": True, "max_tokens": 100_000}
            body = json.dumps({"messages": [question], **rest}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            with socket.create_connection(("127.0.0.1", engines[number % 3].port), PATIENCE) as connection:
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
                wait_for(lambda: sum(1 for count in tokens if count) >= 21, "21 streams run, the others wait")
                before, had = sum(map(work, engines)), sum(tokens)
                wait_for(lambda: sum(tokens) - had > TOKENS, "they go on")
                worked, came = sum(map(work, engines)) - before, sum(tokens) - had
                memory = [worker_memory(engine) for engine in engines]
            finally:
                stop.set()
            for each in running:
                each.result()
        assert all(each < MEMORY_MIB for each in memory), memory
        a_second = 21 * 40 * worked / came  # of 21 streams with 40 tokens a second each
        assert a_second < 0.5, f"{a_second:.2f} s of a processor for a second of three workers: two cores would hardly keep up"


def test_long_prompts_leave_it_light(tmp_path: Path) -> None:
    with running_lab(tmp_path, clock=200) as lab:
        engine = lab.start(lab.seed_options()).ready()
        for number in range(4):
            engine.content(filler(f"{number}", 400_000))
        assert worker_memory(engine) < MEMORY_MIB


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
            answer.result(PATIENCE)
        assert "behind its own clock (x100): the machine is too busy" in engine.log
