"""The simulated engine against recordings of the real one: every exchange, every log, every way it starts and ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tests.conftest import say_at_the_end

from .answers import line_kind, line_kinds
from .comparer import Comparer, Difference, Exemption, group_of
from .engine_lab import H200, Lab, running_lab, wait_for
from .mutations import mutations
from .recordings import (
    CLOCK,
    EXEMPTIONS,
    INDEX,
    RECORDINGS,
    Evidence,
    model_folder,
    options,
    recorded_states,
)
from .replay import run_api_key, run_server, run_speculative


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
    assert evidence.killed_seconds > 5.0, "recorded: 5.64 s"


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
    assert seconds > recorded["seconds"] * 0.5, "it takes its time to find out, as the real one does"
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
