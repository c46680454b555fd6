"""The scheduler's state machine: order, limits, accounts, and the log lines that tell of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.engine.sglang.pace import Pace
from lab.engine.sglang.radix import tokens
from lab.engine.sglang.scheduler import Request, Scheduler, Settings, Step

HYBRID = Settings(tokens=279_487, running=7, slots=39, resident=3, hybrid=True, draft_tokens=8)


def request(rid: str, prompt: list[int], output: int = 8, accept: float = 2.3) -> Request:
    return Request(rid, tokens(prompt), tokens([7] * output), output, accept=accept)


def drain(scheduler: Scheduler) -> list[Step]:
    steps = []
    while (step := scheduler.step()) is not None:
        steps.append(step)
        assert len(steps) < 100_000
    return steps


def logged(steps: list[Step], kind: str) -> list[tuple[int, ...]]:
    """Return (new, cached) tokens of each prefill line, or (running,) of each decode line."""
    pattern = {"Prefill": r"#new-token: (\d+), #cached-token: (\d+)", "Decode": r"#running-req: (\d+)"}[kind]
    found = []
    for step in steps:
        for line in step.logs:
            if line.startswith(kind):
                match = re.search(pattern, line)
                assert match
                found.append(tuple(int(group) for group in match.groups()))
    return found


def test_a_long_prompt_is_prefilled_in_chunks_with_a_line_each_and_a_repeat_resumes_at_a_multiple_of_64() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    prompt = list(range(2884))
    scheduler.submit(request("first", prompt))
    assert logged(drain(scheduler), "Prefill") == [(2048, 0), (836, 0)]
    scheduler.submit(request("again", prompt))
    assert logged(drain(scheduler), "Prefill") == [(4, 2880)], "the seed's own figures"


def test_a_plain_model_resumes_at_the_last_token_but_one() -> None:
    scheduler = Scheduler(Settings(tokens=100_000, running=64), Pace())
    for _ in range(2):
        scheduler.submit(request("r", list(range(129)), accept=1.0))
        lines = logged(drain(scheduler), "Prefill")
    assert lines == [(1, 128)], "prompt - 1 tokens at a full hit"


def test_a_shared_beginning_is_resumed_at_the_fork_the_second_time() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    common = list(range(3000))
    hits = []
    for number in range(3):
        scheduler.submit(request(f"r{number}", [*common, *[10_000 + number] * 500]))
        hits.append(sum(cached for _, cached in logged(drain(scheduler), "Prefill")))
    assert hits == [0, 2048, 2944], "first nothing, then the last state before the fork, then the one kept at it"


def test_the_queue_is_served_in_order_and_no_more_run_than_may() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    for number in range(20):
        scheduler.submit(request(f"{number}", [number] * 50, output=40))
    started: list[str] = []
    while (step := scheduler.step()) is not None:
        started += [rid for rid, *_ in step.started]
        assert len(scheduler.running) <= 7
    assert started == [str(number) for number in range(20)]


def test_a_full_queue_refuses() -> None:
    scheduler = Scheduler(Settings(tokens=10_000, running=1, max_queued=2), Pace())
    answers = [scheduler.submit(request(f"{number}", [number] * 10)) for number in range(3)]
    assert answers == [None, None, "The request queue is full."]


def test_accept_length_shows_in_tokens_speed_and_log() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    scheduler.submit(request("r", [1] * 50, output=1000))
    steps = drain(scheduler)
    decode = [step for step in steps if step.emitted and not step.activation_mib]
    assert 1000 / len(decode) == pytest.approx(2.3, abs=0.05)
    lines = [line for step in steps for line in step.logs if line.startswith("Decode")]
    assert "accept len: 2.30, accept rate: 0.19" in lines[-1]
    speed = re.search(r"gen throughput \(token/s\): ([\d.]+)", lines[-1])
    assert speed
    assert float(speed[1]) == pytest.approx(171, abs=1), "one stream, the seed's figure"


def test_a_dead_draft_is_slow_and_says_so() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    scheduler.submit(request("r", [1] * 50, output=400, accept=1.03))
    lines = [line for step in drain(scheduler) for line in step.logs if line.startswith("Decode")]
    assert "accept len: 1.0" in lines[-1]
    assert "accept rate: 0.00" in lines[-1]


def test_flushing_needs_an_idle_engine_and_forgets() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    scheduler.submit(request("r", list(range(200))))
    assert not scheduler.flush()
    drain(scheduler)
    assert scheduler.flush()
    scheduler.submit(request("again", list(range(200))))
    assert logged(drain(scheduler), "Prefill") == [(200, 0)]


def test_a_small_pool_retracts_rather_than_overcommits() -> None:
    scheduler = Scheduler(Settings(tokens=600, running=8), Pace())
    for number in range(4):
        scheduler.submit(request(f"{number}", [number] * 100, output=200, accept=1.0))
    finished, lines = set(), []
    while (step := scheduler.step()) is not None:
        finished |= {rid for rid, _, done in step.emitted if done}
        lines += step.logs
        assert scheduler.used <= 600
    assert finished == {"0", "1", "2", "3"}
    assert any(line.startswith("KV cache pool is full. Retract requests.") for line in lines)


def test_a_health_probe_is_one_token_and_not_cached() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    for _ in range(2):
        scheduler.submit(Request("HEALTH_CHECK_1", tokens([0]), tokens([0]), 1, health=True))
        assert logged(drain(scheduler), "Prefill") == [(1, 0)]
    assert scheduler.cache.size == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900), st.integers(0, 300), st.booleans()), min_size=1, max_size=25),
    st.booleans(),
)
def test_whatever_comes_every_token_is_delivered_once_and_nothing_stays_locked(
    plan: list[tuple[int, int, int, bool]], hybrid: bool
) -> None:
    kinds = {"slots": 20, "resident": 3, "hybrid": True, "draft_tokens": 8} if hybrid else {}
    scheduler = Scheduler(Settings(tokens=4000, running=4, chunk=256, **kinds), Pace())  # type: ignore[arg-type] # mixed values
    wanted, got, aborted = {}, {}, set()
    for number, (family, prompt, output, abort) in enumerate(plan):
        rid = str(number)
        wanted[rid], got[rid] = output, 0
        scheduler.submit(request(rid, [family] * prompt, output, accept=2.3 if hybrid else 1.0))
        step = scheduler.step()
        for emitted, count, _ in step.emitted if step else []:
            got[emitted] += count
        if abort and scheduler.abort(rid):
            aborted.add(rid)
        assert scheduler.used <= 4000
        assert scheduler.cache.states + len(scheduler.running) * scheduler.settings.resident <= 23 or not hybrid
    for step in drain(scheduler):
        for rid, count, _ in step.emitted:
            got[rid] += count
    assert {rid: count for rid, count in got.items() if rid not in aborted} == {
        rid: count for rid, count in wanted.items() if rid not in aborted
    }
    assert scheduler.used == 0
    assert scheduler.cache.locked == 0
    assert scheduler.available + scheduler.cache.size == 4000


@pytest.mark.parametrize(
    ("tokens_", "seconds"), [(20_000, 7.5), (47_500, 37.0)], ids=["20 k prompt: 7.5 s", "47.5 k prompt: 37 s"]
)
def test_prefill_takes_as_long_as_the_seed_measured(tokens_: int, seconds: float) -> None:
    scheduler = Scheduler(HYBRID, Pace())
    scheduler.submit(request("r", list(range(tokens_)), output=1))
    assert sum(step.seconds for step in drain(scheduler)) == pytest.approx(seconds, rel=0.08)


def test_a_cached_long_prompt_takes_a_fifth_of_a_second() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    for _ in range(2):
        scheduler.submit(request("r", list(range(20_000)), output=1))
        taken = sum(step.seconds for step in drain(scheduler))
    assert taken == pytest.approx(0.2, abs=0.05)


def test_four_streams_get_36_to_43_tokens_a_second_each() -> None:
    scheduler = Scheduler(HYBRID, Pace())
    for number in range(4):
        scheduler.submit(request(f"{number}", [number] * 50, output=400))
    prefill = [scheduler.step()]
    assert all(prefill)
    seconds = sum(step.seconds for step in drain(scheduler))
    assert 36 < 400 / seconds < 43
