"""How an engine fails: by its configuration, by what it finds on the machine, and when the lab says so."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import faults
from lab.engine.sglang import gpu
from lab.engine.sglang.control import REREAD_SECONDS

from .engine_lab import RTX3090, Engine, Lab, filler, free_port, replace_option, running_lab, wait_for
from .test_reply import WEATHER, png

LONG = filler("long", 60_000)
CLOCK = 400


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("failures"), clock=CLOCK) as lab:
        yield lab


@pytest.fixture(autouse=True)
def clean(lab: Lab) -> Iterator[None]:
    yield
    faults.clear_fault(lab.control)
    lab.close()


def ended(engine: Engine, code: int, *words: str) -> None:
    """The engine ended with this code, and its log has these words in order."""
    assert engine.exit_code() == code, engine.log[-1500:]
    at = 0
    for word in words:
        found = engine.log.find(word, at)
        assert found >= 0, f"{word!r} is not in its place in:\n{engine.log[-3000:]}"
        at = found


def set_fault(folder: Path, name: str, **values: Any) -> None:
    """Switch a fault on, and return when every engine must have read it: at this clock a prompt takes less than a look at it."""
    faults.set_fault(folder, name, **values)
    time.sleep(3 * REREAD_SECONDS)


def survives_long(engine: Engine) -> bool:
    try:
        status, _ = engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4})
    except (OSError, IndexError):
        return False
    return status == 200


# --- by configuration


def test_a_fraction_of_085_starts_answers_and_dies_at_the_first_long_prompt(lab: Lab) -> None:
    engine = lab.start(replace_option(lab.seed_options(), "--mem-fraction-static", "0.85")).ready()
    assert engine.content("What is 2+2?") == "2+2 = 4."
    assert not survives_long(engine)
    ended(
        engine,
        -9,
        "Scheduler hit an exception",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "SIGQUIT received.",
        "kill_process",
    )


def test_a_fraction_of_080_survives_the_longest_prompt(lab: Lab) -> None:
    engine = lab.start(lab.seed_options()).ready()
    assert survives_long(engine)
    longest = {"messages": [{"role": "user", "content": filler("longest", 500_000)}], "max_tokens": 4}
    status, answer = engine.post("/v1/chat/completions", longest)
    assert (status, answer["usage"]["prompt_tokens"] > 100_000) == (200, True)


def test_a_long_prompt_that_is_not_cut_into_chunks_takes_too_much_memory(lab: Lab) -> None:
    engine = lab.start(replace_option(lab.seed_options(), "--chunked-prefill-size", "-1")).ready()
    assert not survives_long(engine)
    ended(engine, -9, "torch.OutOfMemoryError")


def test_without_the_draft_more_of_the_memory_may_be_given(lab: Lab) -> None:
    options = lab.seed_options()
    for name in ("algorithm", "draft-model-path", "num-draft-tokens", "draft-model-quantization"):
        options = replace_option(options, f"--speculative-{name}", None)
    engine = lab.start(replace_option(options, "--mem-fraction-static", "0.88")).ready()
    assert survives_long(engine)


def test_a_higher_fraction_dies_at_the_start(lab: Lab) -> None:
    engine = lab.start(replace_option(lab.seed_options(), "--mem-fraction-static", "0.90"))
    ended(engine, -9, "torch.OutOfMemoryError: CUDA out of memory.", "kill_process_tree called")


def test_a_still_higher_fraction_dies_while_graphs_are_captured(lab: Lab) -> None:
    engine = lab.start(replace_option(lab.seed_options(), "--mem-fraction-static", "0.98"))
    ended(engine, -9, "num_active_captures_ > 0", "Received sigquit from a child process.", "kill_process_tree called")


def test_a_fraction_too_low_for_the_weights_is_refused(lab: Lab) -> None:
    engine = lab.start(replace_option(lab.seed_options(), "--mem-fraction-static", "0.3"))
    ended(engine, -9, "Not enough GPU memory for hybrid (mamba/linear-attention) state cache.")


def changed_model(lab: Lab, change: Callable[[Path], None]) -> str:
    """Return the seed's options with a changed copy of the target model."""
    lab.model("qwen3.8-27b-fp8")
    copy = lab.models / f"changed-{time.monotonic_ns()}"
    subprocess.run(["cp", "-r", str(lab.models / "qwen3.8-27b-fp8"), str(copy)], check=True)
    change(copy)
    return replace_option(lab.seed_options(), "--model-path", str(copy))


def test_a_gptq_model_with_narrow_projections_fails(lab: Lab) -> None:
    def quantize(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": 8, "group_size": 128}
        (folder / "config.json").write_text(json.dumps(config))

    ended(lab.start(changed_model(lab, quantize)), -9, "RuntimeError: size_n = 24 is not divisible by tile_n_size = 64")


def test_a_missing_shard_fails(lab: Lab) -> None:
    engine = lab.start(changed_model(lab, lambda folder: next(folder.glob("*2-of*")).unlink()))
    ended(engine, -9, "FileNotFoundError: No such file or directory", "Received sigquit")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "header too small"),
        (b"<html>not found</html>", "header too large"),
        (b"\x10\0\0\0\0\0\0\0{}", "invalid header length"),
    ],
)
def test_a_corrupt_shard_fails(lab: Lab, content: bytes, said: str) -> None:
    def corrupt(folder: Path) -> None:
        next(folder.glob("*2-of*")).write_bytes(content)

    engine = lab.start(changed_model(lab, corrupt))
    ended(engine, -9, f"SafetensorError: Error while deserializing header: {said}")


def test_a_shard_that_only_stands_for_its_size_is_accepted(lab: Lab) -> None:
    def sparse(folder: Path) -> None:
        with next(folder.glob("*2-of*")).open("wb") as file:
            file.truncate(4_000_000_000)

    lab.start(changed_model(lab, sparse)).ready()


def test_without_a_gpu_it_does_not_start(lab: Lab, tmp_path: Path) -> None:
    engine = lab.start(lab.seed_options(), env={"SIM_DEV_DIR": str(tmp_path)})
    ended(engine, 1, "no CUDA-capable device", "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS)")


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"), [("545.23.06", "13.0.3", False), ("545.23.06", "12.9.2", True), ("580.126.09", "13.0.3", True)]
)
def test_a_driver_too_old_for_the_images_cuda_is_error_803(tmp_path: Path, driver: str, cuda: str, runs: bool) -> None:
    with running_lab(tmp_path, driver=driver, clock=CLOCK) as old:
        engine = old.start(old.seed_options(), env={"CUDA_VERSION": cuda})
        if runs:
            engine.ready()
        else:
            ended(
                engine,
                1,
                "Error 803: system has unsupported display driver / cuda driver combination",
                "RuntimeError: No accelerator",
            )


def test_more_ranks_than_cards_fail(lab: Lab) -> None:
    engine = lab.start(lab.seed_options(), env={"CUDA_VISIBLE_DEVICES": "0,1"})
    ended(engine, -9, "CUDA error: invalid device ordinal")


def test_cards_with_unequal_free_memory_are_refused(lab: Lab) -> None:
    with lab.memory_user(6000):
        ended(lab.start(lab.seed_options()), -9, "RuntimeError: The memory capacity is unbalanced.")


def test_a_neighbours_memory_shrinks_the_pools(lab: Lab) -> None:
    alone = lab.start(lab.seed_options()).ready()
    tokens = alone.json("/server_info")["max_total_num_tokens"]
    alone.kill()
    with lab.memory_user(1024):
        beside = lab.start(lab.seed_options()).ready()
        assert beside.json("/server_info")["max_total_num_tokens"] < tokens - 20_000
        assert survives_long(beside)


def test_two_engines_do_not_fit_on_the_same_cards(lab: Lab) -> None:
    lab.start(lab.seed_options()).ready()
    second = lab.start(lab.seed_options())
    assert second.exit_code() == -9


def test_two_engines_share_a_machine_by_base_gpu(tmp_path: Path) -> None:
    with running_lab(tmp_path, count=8, clock=CLOCK) as eight:
        first = eight.start(eight.seed_options())
        second = eight.start(eight.seed_options() + " --base-gpu-id 4")
        assert first.ready().content("What is 1+1?") == second.ready().content("What is 1+1?") == "1+1 = 2."


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        (
            "--context-length",
            "524288",
            "User-specified context_length (524288) is greater than the derived context_length (262144)",
        ),
        (
            "--speculative-dflash-block-size",
            "4",
            "Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set",
        ),
        (
            "--speculative-draft-model-path",
            None,
            "DFLASH speculative decoding requires setting --speculative-draft-model-path.",
        ),
        ("--speculative-algorithm", "GUESS", "Unknown speculative algorithm name: GUESS"),
        ("--pp-size", "2", "only supports pp_size == 1"),
    ],
)
def test_options_that_cannot_work_together_are_refused(lab: Lab, option: str, value: str | None, said: str) -> None:
    ended(lab.start(replace_option(lab.seed_options(), option, value)), 1, "Traceback", said)


@pytest.mark.parametrize("parser", ["--tool-call-parser", "--reasoning-parser"])
def test_without_a_parser_its_part_stays_in_the_content(lab: Lab, parser: str) -> None:
    engine = lab.start(replace_option(lab.seed_options(), parser, None)).ready()
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    message = engine.chat("What is the weather in Paris?", tools=[WEATHER], **thinking)["choices"][0]["message"]
    if parser == "--tool-call-parser":
        assert message["tool_calls"] is None
        assert "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>" in message["content"]
        assert message["reasoning_content"]
    else:
        assert message["reasoning_content"] is None
        assert message["content"].startswith("<think>")
        assert message["tool_calls"]


def test_without_its_vision_part_it_refuses_pictures(lab: Lab) -> None:
    engine = lab.start(lab.seed_options() + " --language-model-only").ready()
    parts = [{"type": "image_url", "image_url": {"url": png((255, 0, 0))}}]
    assert engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})[0] == 400


def accept_length(engine: Engine) -> float:
    engine.chat("Explain in detail how a cache works.", max_tokens=500)
    return float(engine.json("/server_info")["internal_states"][0]["avg_spec_accept_length"])


def test_a_draft_read_in_its_targets_format_is_dead_and_answers_are_right(lab: Lab) -> None:
    engine = lab.start(replace_option(lab.seed_options(), "--speculative-draft-model-quantization", None)).ready()
    assert accept_length(engine) == pytest.approx(1.03, abs=0.02)
    assert engine.content("What is 17+25?") == "17+25 = 42."


def test_a_built_in_head_is_alive_without_a_draft_model(lab: Lab) -> None:
    options = replace_option(lab.seed_options(), "--speculative-algorithm", "NEXTN")
    for name in ("draft-model-path", "draft-model-quantization"):
        options = replace_option(options, f"--speculative-{name}", None)
    assert accept_length(lab.start(options).ready()) > 1.9


def test_a_full_queue_is_refused_with_503(lab: Lab) -> None:
    options = lab.seed_options() + " --max-running-requests 1 --max-queued-requests 1"
    engine = lab.start(options).ready()
    set_fault(lab.control, "slow", factor=500)
    body = json.dumps({"messages": [{"role": "user", "content": "Explain"}], "stream": True, "max_tokens": 2000}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sent = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with (
        socket.create_connection(("127.0.0.1", engine.port)) as first,
        socket.create_connection(("127.0.0.1", engine.port)) as second,
    ):
        first.sendall(sent)
        assert first.recv(100).startswith(b"HTTP/1.1 200 OK")
        second.sendall(sent)
        answers: list[tuple[int, object]] = []

        def refused() -> bool:
            answers.append(
                engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
            )
            return answers[-1][0] == 503

        wait_for(refused, "the queue is full")
    assert answers[-1] == (
        503,
        {"object": "error", "message": "The request queue is full.", "type": "503", "param": None, "code": 503},
    )


def test_sigterm_while_it_loads_ends_it_at_once(lab: Lab) -> None:
    faults.set_clock(lab.control, 1)
    try:
        engine = lab.start(lab.seed_options())
        wait_for(lambda: "UserWarning" in engine.log, "it is on its way")
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_code(5) == -signal.SIGTERM
    finally:
        faults.set_clock(lab.control, CLOCK)


def test_the_scheduler_does_not_outlive_its_server(lab: Lab) -> None:
    engine = lab.start(lab.seed_options()).ready()
    scheduler = engine.scheduler_pid()
    engine.process.kill()
    engine.process.wait()
    wait_for(lambda: not Path(f"/proc/{scheduler}").exists(), "the scheduler is gone", 5)


# --- when the lab says so


def start(lab: Lab) -> Engine:
    return lab.start(lab.seed_options())


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

    usual = min(seconds() for _ in range(4))
    set_fault(lab.control, "slow", factor=200)
    time.sleep(0.2)
    assert seconds() > 4 * usual


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


# --- the switch itself


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


# --- the cards


def test_memory_cannot_be_overcommitted_and_the_kernel_frees_a_dead_processs(lab: Lab) -> None:
    device = gpu.open_device(0, lab.devices / "nvidia0")
    try:
        total = RTX3090[1]
        holder = lab.memory_user(10_000)
        assert device.free() == total - 10_000
        with pytest.raises(gpu.OutOfMemory, match="CUDA out of memory"):
            device.allocate(total - 9_999)
        assert device.held() == 0, "what could not be had in full is not held in part"
        taken = device.allocate(total - 10_000)
        assert device.free() == 0
        device.release(taken)
        holder.kill()
        holder.wait()
        wait_for(lambda: device.free() == total, "the dead process's memory is free", 5)
    finally:
        os.close(device.descriptor)
