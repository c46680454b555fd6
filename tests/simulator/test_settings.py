"""How an engine fails, or serves otherwise, by its settings."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from lab import faults

from .engine_lab import Lab, filler, replace_option, wait_for
from .failing import CLOCK, accept_length, ended, set_fault, survives_long
from .test_reply import WEATHER, png

pytestmark = pytest.mark.usefixtures("clean")


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
        assert engine.exit_code() == -signal.SIGTERM
        assert "fired up" not in engine.log, "nobody waited until it had loaded"
    finally:
        faults.set_clock(lab.control, CLOCK)


def test_the_scheduler_does_not_outlive_its_server(lab: Lab) -> None:
    engine = lab.start(lab.seed_options()).ready()
    scheduler = engine.scheduler_pid()
    engine.process.kill()
    engine.process.wait()
    wait_for(lambda: not Path(f"/proc/{scheduler}").exists(), "the scheduler is gone")
