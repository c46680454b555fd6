"""How an engine fails when the lab says so, and the switch itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import faults

from .engine_lab import Lab, filler, free_port, wait_for
from .failing import accept_length, ended, set_fault, start, survives_long

pytestmark = pytest.mark.usefixtures("clean")


def crash_at_start(lab: Lab) -> None:
    set_fault(lab.control, "crash_at_start", message="ImportError: no luck today")
    ended(start(lab), 1, "Traceback", "ImportError: no luck today")


def cuda_mismatch(lab: Lab) -> None:
    set_fault(lab.control, "cuda_mismatch")
    ended(start(lab), 1, "Error 803", "RuntimeError: No accelerator")


def weights_corrupted(lab: Lab) -> None:
    set_fault(lab.control, "weights_corrupted")
    ended(start(lab), -9, "SafetensorError", "Received sigquit")


def oom_at_start(lab: Lab) -> None:
    set_fault(lab.control, "oom_at_start")
    ended(start(lab), -9, "torch.OutOfMemoryError", "Received sigquit")


def graph_capture_assert(lab: Lab) -> None:
    set_fault(lab.control, "graph_capture_assert")
    ended(start(lab), -9, "INTERNAL ASSERT FAILED", "markCaptureEnd", "Received sigquit")


def slow_load(lab: Lab) -> None:
    set_fault(lab.control, "slow_load", factor=400)
    engine = start(lab)
    wait_for(lambda: "Multi-thread loading shards:   0%" in engine.log, "it loads")
    time.sleep(1.0)
    assert "Multi-thread loading shards: 100%" not in engine.log, "29 s, 400 times slower, at a clock of 400"


def never_healthy(lab: Lab) -> None:
    set_fault(lab.control, "never_healthy")
    engine = start(lab)
    wait_for(lambda: "fired up" in engine.log, "it is fired up")
    assert engine.get("/health")[0] == 503
    assert engine.get("/model_info")[0] == 200
    faults.clear_fault(lab.control)
    engine.ready()


def oom_at_long_request(lab: Lab) -> None:
    engine = start(lab).ready()
    set_fault(lab.control, "oom_at_long_request", tokens=10_000)
    engine.content(filler("short", 8_000))
    assert not survives_long(engine)
    ended(engine, -9, "torch.OutOfMemoryError", "SIGQUIT received.")


def crash(lab: Lab) -> None:
    engine = start(lab).ready()
    set_fault(lab.control, "crash", message="RuntimeError: CUDA error: unspecified launch failure")
    ended(engine, -9, "Scheduler hit an exception", "unspecified launch failure", "SIGQUIT received.")


def killed_scheduler(lab: Lab) -> None:
    engine = start(lab).ready()
    set_fault(lab.control, "killed_scheduler")
    ended(engine, -9, "Subprocess scheduler_0 (pid=", "crashed with exit code -9", "SIGQUIT received.", "Sleeping 5 seconds")


def hung_scheduler(lab: Lab) -> None:
    engine = start(lab).ready()
    set_fault(lab.control, "hung_scheduler")
    wait_for(lambda: engine.get("/health")[0] == 503, "/health says 503")
    assert engine.get("/metrics")[0] == 200
    assert engine.get("/model_info")[0] == 200
    faults.clear_fault(lab.control)
    engine.ready()
    assert engine.content("What is 2+2?") == "2+2 = 4."


def dead_draft(lab: Lab) -> None:
    engine = start(lab).ready()
    assert accept_length(engine) > 1.9
    set_fault(lab.control, "dead_draft")
    wait_for(
        lambda: (engine.chat("Explain more", max_tokens=200), engine.metric("sglang:spec_accept_length") or 9)[1] < 1.1,
        "it is dead",
    )
    assert engine.content("What is 17+25?") == "17+25 = 42."


def garbage(lab: Lab) -> None:
    engine = start(lab).ready()
    set_fault(lab.control, "garbage")
    wait_for(lambda: "42" not in engine.content("What is 17+25?"), "answers are noise")


def slow(lab: Lab) -> None:
    engine = start(lab).ready()

    def seconds() -> float:
        began = time.monotonic()
        engine.chat("Explain in detail.", max_tokens=300)
        return time.monotonic() - began

    set_fault(lab.control, "slow", factor=2000)
    assert seconds() > 3.0, "two of its own seconds, which pass in five thousandths of a real one otherwise"


ACTED = (
    crash_at_start, cuda_mismatch, weights_corrupted, oom_at_start, graph_capture_assert, slow_load, never_healthy,
    oom_at_long_request, crash, killed_scheduler, hung_scheduler, dead_draft, garbage, slow,
)  # fmt: skip


@pytest.mark.parametrize("act", ACTED, ids=lambda act: act.__name__)
def test_a_fault_does_what_its_description_says(lab: Lab, act: Callable[[Lab], None]) -> None:
    act(lab)


def test_every_fault_is_acted_out_by_a_test() -> None:
    assert {act.__name__ for act in ACTED} == set(faults.KINDS)


def test_a_fault_is_for_one_port_or_for_all(lab: Lab) -> None:
    port = free_port()
    set_fault(lab.control, "crash_at_start", port=port + 1)
    lab.start(lab.seed_options(), port).ready().kill()
    set_fault(lab.control, "crash_at_start", port=port)
    ended(lab.start(lab.seed_options(), port), 1)


def test_a_broken_file_of_faults_keeps_the_last_good_one(lab: Lab) -> None:
    engine = start(lab).ready()
    set_fault(lab.control, "never_healthy")
    wait_for(lambda: engine.get("/health")[0] == 503, "the fault is on")
    (lab.control / "faults.json").write_text("[{")
    wait_for(lambda: "[sim] cannot read" in engine.log, "it says so")
    assert engine.get("/health")[0] == 503
    faults.write(lab.control, [])
    engine.ready()


def test_switching_faults_on_and_off(tmp_path: Path) -> None:
    set_fault(tmp_path, "slow", port=1, factor=2)
    set_fault(tmp_path, "slow", port=1, factor=3)
    set_fault(tmp_path, "garbage")
    assert faults.read(tmp_path) == [{"fault": "slow", "port": 1, "factor": 3}, {"fault": "garbage"}]
    assert faults.clear_fault(tmp_path, "slow") == 1
    assert faults.clear_fault(tmp_path) == 1
    assert faults.read(tmp_path) == []


@pytest.mark.parametrize(("name", "parameters", "said"), [("slwo", {}, "no fault 'slwo'"), ("slow", {"by": 2}, "takes no by")])
def test_what_is_no_fault_is_refused(name: str, parameters: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        faults.fault(name, **parameters)


def test_a_clock_has_to_go_forward(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="positive factor"):
        faults.set_clock(tmp_path, 0)
