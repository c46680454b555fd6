"""The simulated engine against recordings of the real one: every exchange, every log, every way it starts and ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab import faults
from lab.engine.sglang.options import catalogue, destination
from tests.conftest import say_at_the_end

from .comparer import (
    Answer,
    Comparer,
    Difference,
    Exemption,
    event_kind,
    event_values,
    families,
    group_of,
    leaves,
    line_kind,
    line_kinds,
    parse,
    without_event_path,
    without_header,
    without_metric,
    without_path,
    written,
)
from .engine_lab import H200, ROOT, Engine, Lab, expand, replayed, running_lab, wait_for

RECORDINGS = ROOT / "tests" / "recordings"
INDEX: dict[str, list[dict[str, str]]] = json.loads((RECORDINGS / "index.json").read_text())
# In a pattern, OPTIONS stands for the name of any option of 0.5.19: the recordings are of 0.5.17, which has fewer.
OPTIONS = "(" + "|".join(sorted(destination(option) for option in catalogue())) + ")"
EXEMPTIONS = [
    Exemption(entry["where"], entry["field"].replace("OPTIONS", OPTIONS), entry["reason"])
    for entry in json.loads((Path(__file__).parent / "exemptions.json").read_text())
]
CLOCK = 20.0


@dataclass
class Pair:
    """A recorded exchange and what the simulation answered."""

    source: str
    name: str
    method: str
    path: str
    recorded: Answer
    simulated: Answer


@dataclass
class Evidence:
    """All that was replayed: pairs, logs, exit codes, states over time."""

    pairs: list[Pair] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    sigterm_exit: int | None = None
    killed_exit: int | None = None
    killed_seconds: float = 0.0
    startup: dict[str, list[int | None]] = field(default_factory=dict)
    sigterm: dict[str, list[int | None]] = field(default_factory=dict)
    hung: dict[str, list[int | None]] = field(default_factory=dict)
    stream_ended: bool = False
    comparer: Comparer | None = None


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
        self.join(60)
        return self.states


def recorded_states(name: str) -> dict[str, list[int | None]]:
    """Return the recorded changes of state by endpoint."""
    states: dict[str, list[int | None]] = {}
    for line in (RECORDINGS / name).read_text().splitlines():
        entry = json.loads(line)
        changes = states.setdefault(entry["ep"], [])
        if not changes or changes[-1] != entry["status"]:
            changes.append(entry["status"])
    return states


def model_folder(lab: Lab) -> Path:
    """Make the model of the recordings: its config, and a sparse file of its weights' size."""
    folder = lab.models / "model"
    folder.mkdir()
    shutil.copy(RECORDINGS / "server" / "model_config.json", folder / "config.json")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(323_000_000)
    (lab.models / "empty").mkdir()
    return folder


def options(lab: Lab, command: str, port: int | None = None) -> str:
    """Return a recorded command's options, with this lab's paths and, if given, another port."""
    words = shlex.split(command)[3:]
    words = [word.replace("/srv/sg", str(lab.models)) for word in words]
    if port is not None:
        words[words.index("--port") + 1] = str(port)
    else:
        del words[words.index("--port") : words.index("--port") + 2]
    return shlex.join(words)


def exchange(name: str) -> tuple[bytes, str, str, Answer | None]:
    """Read a recorded exchange: request, method, path, answer (None where only the request was kept)."""
    request = (RECORDINGS / f"{name}.req").read_bytes()
    method, path = request.split(b"\r\n")[0].decode().split(" ")[:2]
    response = RECORDINGS / f"{name}.resp"
    return request, method, path, parse(response.read_bytes()) if response.exists() else None


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
    engine.ready()
    time.sleep(0.3)
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
        engine.process.send_signal(signal.SIGTERM)
        wait_for(lambda: poller.states["/health"][-1] == 503, "/health says 503")
        replay(evidence, engine, "server", {"name": "server/chat/sigterm_new_request", "during": "sigterm"})
        evidence.stream_ended = stream.result(60).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    evidence.sigterm_exit = engine.exit_code()
    time.sleep(0.1)
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
        chat.result(60)
    wait_for(lambda: poller.states["/health"][-1] == 200 and poller.states["/health_generate"][-1] == 200, "healthy again")
    began = time.monotonic()
    kill(scheduler)
    evidence.killed_exit = engine.exit_code()
    evidence.killed_seconds = (time.monotonic() - began) * CLOCK
    time.sleep(0.1)
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


def table(comparer: Comparer) -> str:
    """Return what was compared, for the end of the test run."""
    lines = [f"{'source':<40}{'exchanges':>10}{'fields':>10}"]
    for source in comparer.fields:
        lines.append(f"{source:<40}{comparer.exchanges.get(source, 0) or '':>10}{comparer.fields[source]:>10}")
    lines.append(f"{'all':<40}{comparer.exchanges.total():>10}{comparer.fields.total():>10}")
    lines.append(f"exempted: {comparer.exempted.total()} fields")
    lines += [f"{count:>8}  {reason}" for reason, count in comparer.exempted.most_common()]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("recordings"), gpu=H200, count=1, clock=CLOCK) as lab:
        model_folder(lab)
        yield lab


@pytest.fixture(scope="module")
def evidence(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Evidence]:
    found = Evidence()
    run_server(lab, found)
    run_api_key(lab, found)
    run_speculative(lab, found)
    found.comparer = Comparer([(pair.method, pair.path, pair.recorded) for pair in found.pairs], EXEMPTIONS)
    yield found
    say_at_the_end(request.config, "simulated engine against recordings", table(found.comparer))


def comparer_of(evidence: Evidence) -> Comparer:
    assert evidence.comparer is not None
    return evidence.comparer


def said(differences: list[Difference]) -> str:
    return "\n" + "\n".join(str(each) for each in differences[:200])


def test_every_exchange_has_the_recorded_shape(evidence: Evidence) -> None:
    comparer = comparer_of(evidence)
    recorded = [entry for entries in INDEX.values() for entry in entries if (RECORDINGS / f"{entry['name']}.resp").exists()]
    assert sorted(pair.name for pair in evidence.pairs) == sorted(entry["name"] for entry in recorded)
    differences = []
    for pair in evidence.pairs:
        differences += comparer.compare(pair.source, pair.name, pair.method, pair.path, pair.recorded, pair.simulated)
    assert not differences, said(differences)


def test_whatever_the_recordings_show_once_the_simulation_shows_once(evidence: Evidence) -> None:
    simulated = [(pair.method, pair.path, pair.simulated) for pair in evidence.pairs]
    differences = comparer_of(evidence).coverage(simulated)
    assert not differences, said(differences)


@pytest.mark.parametrize("name", ["server/worker.log", "speculative/ngram.log"])
def test_every_kind_of_log_line_is_logged(evidence: Evidence, name: str) -> None:
    recorded = (RECORDINGS / name).read_text().splitlines()
    differences = comparer_of(evidence).logs(name, recorded, evidence.logs[name])
    assert not differences, said(differences)


def test_endpoints_turn_ready_in_the_recorded_order(evidence: Evidence) -> None:
    recorded = recorded_states("server/startup_poll.jsonl")
    assert evidence.startup == recorded
    assert evidence.startup["/health"] == [None, 503, 200]
    assert evidence.startup["/model_info"] == [None, 200], "an endpoint that answers proves no readiness"


def test_sigterm_lets_the_stream_finish_and_ends_as_recorded(evidence: Evidence) -> None:
    assert evidence.sigterm == recorded_states("server/sigterm_poll.jsonl")
    recorded = json.loads((RECORDINGS / "server" / "sigterm.json").read_text())
    assert evidence.sigterm_exit == recorded["exit"] == -9
    assert evidence.stream_ended
    log = evidence.logs["server/worker.log"]
    kinds = [line_kind(line) for line in log if "SIGTERM" in line or "racefully" in line or "during shutdown" in line]
    assert kinds[0].startswith("[T] SIGTERM received."), kinds
    assert "[T] Health check request received during shutdown. Returning N." in kinds
    assert "Remaining number of requests N." in kinds[-1]


def test_a_hung_and_then_killed_scheduler_looks_as_recorded(evidence: Evidence) -> None:
    recorded = recorded_states("failures/hung_scheduler_poll.jsonl")
    assert evidence.hung == recorded
    assert evidence.hung["/health"] == [200, 503, 200, None]
    assert evidence.hung["/metrics"] == [200, None], "metrics stay alive while the scheduler hangs"
    assert evidence.killed_exit == -9
    assert 5.0 < evidence.killed_seconds < 30.0, "recorded: 5.64 s; a busy machine adds its own at a clock of 20"


def test_a_killed_scheduler_is_logged_as_recorded(evidence: Evidence) -> None:
    starts = json.loads((RECORDINGS / "failures" / "starts.json").read_text())
    recorded = next(start["lines"] for start in starts if start["name"] == "scheduler_killed")
    differences = comparer_of(evidence).logs("failures/scheduler_killed", recorded, evidence.logs["failures/scheduler_killed"])
    assert not differences, said(differences)


STARTS = {start["name"]: start for start in json.loads((RECORDINGS / "failures" / "starts.json").read_text())}


@pytest.mark.parametrize("name", ["fail_bad_path", "fail_empty_dir", "fail_unknown_flag", "fail_fraction_high"])
def test_a_start_that_fails_ends_with_the_recorded_code_time_and_words(lab: Lab, evidence: Evidence, name: str) -> None:
    recorded = STARTS[name]
    engine = lab.start(options(lab, recorded["cmd"]))
    assert engine.exit_code() == recorded["exit"]
    seconds = (time.monotonic() - engine.started) * CLOCK
    assert recorded["seconds"] * 0.5 < seconds < recorded["seconds"] * 4, "roughly as long as the real one takes to find out"
    differences = comparer_of(evidence).logs(f"failures/{name}", recorded["lines"], engine.log.splitlines())
    assert not differences, said(differences)


def test_a_fraction_near_nothing_starts_all_the_same(lab: Lab, evidence: Evidence) -> None:
    recorded = STARTS["fail_mem_too_small"]
    engine = lab.start(options(lab, recorded["cmd"])).ready()
    wait_for(lambda: "fired up" in engine.log, "it is fired up")
    differences = comparer_of(evidence).logs("failures/fail_mem_too_small", recorded["lines"], engine.log.splitlines())
    assert not differences, said(differences)
    engine.kill()


def test_a_nearly_full_gpu_starts_with_a_small_pool_and_no_error(lab: Lab, evidence: Evidence) -> None:
    recorded = STARTS["fail_gpu_full"]
    with lab.memory_user(H200[1] - 5500):
        engine = lab.start(options(lab, recorded["cmd"])).ready()
        wait_for(lambda: "fired up" in engine.log, "it is fired up")
        tokens = engine.json("/server_info")["max_total_num_tokens"]
        engine.kill()
    assert 5_000 < tokens < 200_000, "recorded: 55,212 tokens instead of 3.6 million"
    differences = comparer_of(evidence).logs("failures/fail_gpu_full", recorded["lines"], engine.log.splitlines())
    assert not differences, said(differences)


def test_an_absurd_number_of_tokens_is_clamped_in_silence(lab: Lab, evidence: Evidence) -> None:
    engine = lab.start(options(lab, STARTS["max_total_tokens_absurd"]["cmd"])).ready()
    wait_for(lambda: "fired up" in engine.log, "it is fired up")
    engine.process.send_signal(signal.SIGTERM)
    assert engine.exit_code() == -9
    recorded = (RECORDINGS / "failures" / "max_total_tokens_absurd.log").read_text().splitlines()
    differences = comparer_of(evidence).logs("failures/max_total_tokens_absurd.log", recorded, engine.log.splitlines())
    assert not differences, said(differences)


def test_a_taken_port_is_called_fired_up_and_exits_3(lab: Lab, evidence: Evidence) -> None:
    recorded = STARTS["fail_port_in_use"]
    first = lab.start(options(lab, recorded["cmd"])).ready()
    second = lab.start(options(lab, recorded["cmd"], first.port))
    assert second.exit_code() == 3
    assert "The server is fired up and ready to roll!" in second.log, "its warm-up reached the other server"
    differences = comparer_of(evidence).logs("failures/fail_port_in_use", recorded["lines"], second.log.splitlines())
    assert not differences, said(differences)
    first.kill()


def test_a_port_taken_by_a_server_with_a_key_lingers(lab: Lab) -> None:
    command = STARTS["fail_port_in_use"]["cmd"]
    first = lab.start(options(lab, command) + " --api-key sk-first").ready()
    second = lab.start(options(lab, command, first.port))
    wait_for(lambda: "Waiting for application shutdown" in second.log, "the second found the port taken")
    time.sleep(10 / CLOCK)
    assert second.process.poll() is None
    assert "fired up" not in second.log
    second.kill()
    first.kill()


def mutations(pair: Pair) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield, for each thing the simulation's answer consists of, its name and how to make the answer without it."""
    answer = pair.simulated
    for name, _ in answer.headers:
        if not pair.name.startswith("router/"):  # the router in between wrote those
            yield f"header {name}", partial(without_header, answer, name)
    if answer.kind == "json":
        for path in dict.fromkeys(path for path, _ in leaves(json.loads(answer.body)) if path and path[-1] != "[]"):
            yield written(path), partial(without_path, answer, path)
    elif answer.kind == "events":
        kinds: dict[str, Any] = {}
        for event in event_values(answer):
            kinds.setdefault(event_kind(event), event)
        for kind, event in kinds.items():
            yield f"event <{kind}>", partial(without_event_path, answer, kind, ())
            for path in dict.fromkeys(path for path, _ in leaves(event) if path and path[-1] != "[]"):
                yield f"event <{kind}> {written(path)}", partial(without_event_path, answer, kind, path)
    elif answer.kind == "metrics":
        for name in families(answer.body.decode()):
            if "{" not in name and name.startswith("sglang:"):
                yield f"metric {name}", partial(without_metric, answer, name)
    elif answer.body:
        yield "text", partial(Answer, answer.status, answer.headers, b"")


def test_taking_any_one_thing_out_of_the_simulation_is_noticed(evidence: Evidence) -> None:
    """What the comparer does not miss, it does not compare: everything an answer consists of is taken out once."""
    comparer = Comparer([(pair.method, pair.path, pair.recorded) for pair in evidence.pairs], EXEMPTIONS)
    tried, seen = 0, set()
    unnoticed = []
    for pair in evidence.pairs:
        whole = comparer.compare(pair.source, pair.name, pair.method, pair.path, pair.recorded, pair.simulated)
        assert not whole, said(whole)
        for what, mutated in mutations(pair):
            key = (group_of(pair.method, pair.path, pair.recorded), what)
            if key in seen:
                continue
            seen.add(key)
            tried += 1
            if not comparer.compare(pair.source, pair.name, pair.method, pair.path, pair.recorded, mutated()):
                unnoticed.append(f"{pair.name}: {what}")
    assert tried > 1500
    extra = [
        each for each in unnoticed if not any(Exemption(e.where, e.field, e.reason).covers(newer(each)) for e in EXEMPTIONS)
    ]
    assert not extra, "\n" + "\n".join(extra[:60])


def newer(unnoticed: str) -> Difference:
    """Return the difference that adds a field which the recordings have not: what is exempted there may also go."""
    where, _, field_name = unnoticed.partition(": ")
    return Difference(where, f"{field_name} extra", "", "")


def test_taking_any_kind_of_log_line_out_is_noticed(evidence: Evidence) -> None:
    for name in ("server/worker.log", "speculative/ngram.log"):
        recorded = line_kinds((RECORDINGS / name).read_text().splitlines())
        simulated = set(line_kinds(evidence.logs[name]))
        comparer = Comparer([], EXEMPTIONS)
        for kind in simulated & set(recorded):
            assert comparer.log_kinds(name, recorded, simulated - {kind}), f"nobody misses {kind}"


def test_every_exemption_is_used(evidence: Evidence) -> None:
    comparer = Comparer([(pair.method, pair.path, pair.recorded) for pair in evidence.pairs], EXEMPTIONS)
    for pair in evidence.pairs:
        comparer.compare(pair.source, pair.name, pair.method, pair.path, pair.recorded, pair.simulated)
    for name, lines in evidence.logs.items():
        path = RECORDINGS / name
        if path.is_file():
            comparer.logs(name, path.read_text().splitlines(), lines)
    unused = {exemption.reason for exemption in EXEMPTIONS} - set(comparer.exempted)
    assert not unused
