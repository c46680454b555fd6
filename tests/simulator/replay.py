"""Has the simulated engine go through what was recorded: requests, a start, loads, signals."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from lab import faults
from lab.run import PATIENCE

from .answers import parse
from .engine_lab import Engine, Lab, expand, replayed, wait_for
from .recordings import (
    CLOCK,
    INDEX,
    RECORDINGS,
    Evidence,
    Pair,
    exchange,
    options,
    recorded_states,
)


class Poller(threading.Thread):
    """Asks endpoints again and again, and keeps each one's changes of state."""

    def __init__(self, engine: Engine, endpoints: list[str]):
        super().__init__(daemon=True)
        self.engine = engine
        self.states: dict[str, list[int | None]] = {endpoint: [] for endpoint in endpoints}
        self.stopping = threading.Event()

    def run(self) -> None:
        """Poll each endpoint in a thread of its own, as the recording did."""
        with ThreadPoolExecutor(len(self.states)) as pool:
            list(pool.map(self._poll, self.states))

    def _poll(self, endpoint: str) -> None:
        while not self.stopping.is_set():
            status, _ = self.engine.get(endpoint)
            states = self.states[endpoint]
            if not states or states[-1] != status:
                states.append(status)
            time.sleep(0.01)

    def finish(self) -> dict[str, list[int | None]]:
        """Stop and return the changes."""
        self.stopping.set()
        self.join(PATIENCE)
        return self.states


def replay(evidence: Evidence, engine: Engine, source: str, entry: dict[str, str]) -> None:
    """Send one recorded request and keep both answers."""
    request, method, path, recorded = exchange(entry["name"])
    limit = 5000 if entry["during"] == "disconnect" else None
    answer = engine.raw(replayed(request), limit=limit)
    if recorded is not None:
        evidence.pairs.append(Pair(source, entry["name"], method, path, recorded, parse(answer)))


def replay_under_load(lab: Lab, evidence: Evidence, engine: Engine, entries: list[dict[str, str]]) -> None:
    """Replay while eight streams run, as the recording did; the first stream is one of the exchanges."""
    request, method, path, recorded = exchange("server/chat/load_0")
    body = json.loads(replayed(request).partition(b"\r\n\r\n")[2])
    head = request.partition(b"\r\n\r\n")[0]
    words = expand(body["messages"][0]["content"])

    def stream(number: int) -> bytes:
        body["messages"][0]["content"] = f"{number} {words}"
        return engine.raw(replayed(head + b"\r\n\r\n" + json.dumps({**body, "max_tokens": 4000}).encode()))

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream, number) for number in range(8)]
        wait_for(lambda: engine.json("/v1/loads")["loads"][0]["num_running_reqs"] == 8, "eight streams run")
        faults.set_clock(lab.control, CLOCK / 5)  # none may end before all was asked, however busy the machine is
        for entry in entries:
            if entry["name"] != "server/chat/load_0":
                replay(evidence, engine, "server", entry)
        faults.set_clock(lab.control, CLOCK)
        answers = [parse(each.result()) for each in streams]
    assert recorded is not None
    evidence.pairs.append(Pair("server", "server/chat/load_0", method, path, recorded, answers[0]))


def run_server(lab: Lab, evidence: Evidence) -> None:
    """Start as recorded, poll the start, replay everything in order, then SIGTERM during a stream."""
    command = (RECORDINGS / "server" / "worker.cmd").read_text()
    engine = lab.start(options(lab, command))
    poller = Poller(engine, list(recorded_states("server/startup_poll.jsonl")))
    poller.start()
    wait_for(lambda: "decode CUDA graph end" in engine.log, "it is about to serve")
    faults.set_clock(lab.control, 1)  # what it says for a second of its own must be seen on a busy machine too
    wait_for(lambda: all(200 in states for states in poller.states.values()), "every endpoint answers")
    faults.set_clock(lab.control, CLOCK)
    evidence.startup = poller.finish()
    loaded = [entry for entry in INDEX["server"] if entry["during"] == "load"]
    done = False
    for entry in INDEX["server"]:
        if entry["during"] == "load":
            if not done:
                replay_under_load(lab, evidence, engine, loaded)
                done = True
        elif entry["during"] != "sigterm":
            replay(evidence, engine, "server", entry)
    for entry in INDEX["through_router"]:
        replay(evidence, engine, "through the router", entry)
    end_with_sigterm(engine, evidence)
    evidence.logs["server/worker.log"] = engine.log.splitlines()


def end_with_sigterm(engine: Engine, evidence: Evidence) -> None:
    """Terminate while a stream runs: it has to finish, and a new request is still served."""
    request, _, _, _ = exchange("server/chat/sigterm_stream")
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(engine.raw, request)
        wait_for(lambda: engine.json("/v1/loads")["loads"][0]["num_running_reqs"] == 1, "the stream runs")
        poller = Poller(engine, list(recorded_states("server/sigterm_poll.jsonl")))
        poller.start()
        wait_for(lambda: all(200 in states for states in poller.states.values()), "every endpoint answered 200")
        faults.set_clock(engine.lab.control, CLOCK / 5)
        engine.process.send_signal(signal.SIGTERM)
        wait_for(lambda: poller.states["/health"][-1] == 503, "/health says 503")
        replay(evidence, engine, "server", {"name": "server/chat/sigterm_new_request", "during": "sigterm"})
        evidence.stream_ended = stream.result(PATIENCE).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    evidence.sigterm_exit = engine.exit_code()
    faults.set_clock(engine.lab.control, CLOCK)
    wait_for(lambda: all(states[-1] is None for states in poller.states.values()), "nobody answers any more")
    evidence.sigterm = poller.finish()


def run_api_key(lab: Lab, evidence: Evidence) -> None:
    """Keys missing, wrong and right; then a hung and a killed scheduler."""
    starts = json.loads((RECORDINGS / "failures" / "starts.json").read_text())
    command = next(start["cmd"] for start in starts if start["name"] == "scheduler_killed")
    engine = lab.start(options(lab, command)).ready()
    for entry in INDEX["api_key"]:
        if entry["during"] == "idle":
            replay(evidence, engine, "api key", entry)
    poller = Poller(engine, list(recorded_states("failures/hung_scheduler_poll.jsonl")))
    poller.start()
    wait_for(lambda: 200 in poller.states["/health"], "/health says 200")
    scheduler = engine.scheduler_pid()
    hung = {"name": "failures/hung_chat", "during": "hung"}
    with ThreadPoolExecutor(1) as pool:
        stop(scheduler)
        chat = pool.submit(replay, evidence, engine, "api key", hung)
        wait_for(lambda: 503 in poller.states["/health"] and 503 in poller.states["/health_generate"], "/health says 503")
        assert poller.states["/metrics"][-1] == 200
        resume(scheduler)
        chat.result(PATIENCE)
    wait_for(lambda: poller.states["/health"][-1] == 200 and poller.states["/health_generate"][-1] == 200, "healthy again")
    began = time.monotonic()
    kill(scheduler)
    evidence.killed_exit = engine.exit_code()
    evidence.killed_seconds = (time.monotonic() - began) * CLOCK
    wait_for(lambda: all(states[-1] is None for states in poller.states.values()), "nobody answers any more")
    evidence.hung = poller.finish()
    evidence.logs["failures/scheduler_killed"] = engine.log.splitlines()


def stop(pid: int) -> None:
    """Stop a process."""
    signal.pidfd_send_signal(_pidfd(pid), signal.SIGSTOP)


def resume(pid: int) -> None:
    """Let a process go on."""
    signal.pidfd_send_signal(_pidfd(pid), signal.SIGCONT)


def kill(pid: int) -> None:
    """Kill a process."""
    signal.pidfd_send_signal(_pidfd(pid), signal.SIGKILL)


def _pidfd(pid: int) -> int:
    return os.pidfd_open(pid)


def run_speculative(lab: Lab, evidence: Evidence) -> None:
    """Speculation: accept length and rate in log, metrics and loads."""
    engine = lab.start(options(lab, (RECORDINGS / "speculative" / "ngram.cmd").read_text())).ready()
    for entry in INDEX["speculative"]:
        replay(evidence, engine, "speculative", entry)
    evidence.logs["speculative/ngram.log"] = engine.log.splitlines()
    engine.kill()
