"""A whole engine with the seed's options on four simulated cards: what a client, an operator and a neighbour see of it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import faults
from lab.engine.sglang.control import REREAD_SECONDS

from .engine_lab import Engine, Lab, filler, replace_option, running_lab, wait_for
from .test_reply import WEATHER, png

THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("server")) as lab:
        yield lab


@pytest.fixture(scope="module")
def engine(lab: Lab) -> Engine:
    engine = lab.start(lab.seed_options()).ready()
    wait_for(lambda: "fired up" in engine.log, "it is fired up")
    return engine


def message(answer: Any) -> Any:
    return answer["choices"][0]["message"]


# --- answers


def test_a_sum_is_answered_right_with_the_thinking_apart(engine: Engine) -> None:
    answer = engine.chat("What is 17+25?", **THINKING)
    assert message(answer)["content"] == "17+25 = 42."
    assert "17+25" in message(answer)["reasoning_content"]
    assert 0 < answer["usage"]["reasoning_tokens"] < answer["usage"]["completion_tokens"]


def test_thinking_can_be_switched_off(engine: Engine) -> None:
    assert message(engine.chat("What is 17+25?"))["reasoning_content"] is None


def test_a_call_is_parsed_streamed_or_not(engine: Engine) -> None:
    answer = engine.chat("What is the weather in Paris?", tools=[WEATHER])
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert message(answer)["content"] == ""
    call = message(answer)["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
    joined = ""
    for event in engine.events("What is the weather in Paris?", tools=[WEATHER], **THINKING)[:-1]:
        for part in event["choices"][0]["delta"].get("tool_calls") or []:
            joined += part["function"]["arguments"]
    assert json.loads(joined) == {"city": "Paris"}


def test_a_stream_says_what_the_plain_answer_says_and_ends_properly(engine: Engine) -> None:
    events = engine.events("What is 9 * 8?", stream_options={"include_usage": True}, **THINKING)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    deltas = [event["choices"][0]["delta"] for event in events[:-2]]
    plain = message(engine.chat("What is 9 * 8?", **THINKING))
    for key in ("content", "reasoning_content"):
        assert "".join(delta.get(key) or "" for delta in deltas) == plain[key]
    assert events[-3]["choices"][0]["finish_reason"] == "stop"


def test_a_picture_is_described(engine: Engine) -> None:
    parts = [{"type": "image_url", "image_url": {"url": png((255, 0, 0))}}, {"type": "text", "text": "Which colour is this?"}]
    status, answer = engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
    assert status == 200
    assert "red" in message(answer)["content"]
    assert answer["usage"]["prompt_tokens"] > 256


def test_a_broken_picture_is_refused(engine: Engine) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    status, answer = engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
    assert status == 400
    assert answer["object"] == "error"


def test_several_choices_are_given(engine: Engine) -> None:
    answer = engine.chat("Say hello", n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]


def test_limits_are_honoured(engine: Engine) -> None:
    answer = engine.chat("Explain in detail how a cache works.", max_tokens=30)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 30)
    stopped = engine.chat("Count to 50", stop=["7,"])
    assert message(stopped)["content"] == "1, 2, 3, 4, 5, 6, "
    assert stopped["choices"][0]["matched_stop"] == "7,"


def test_an_overlong_prompt_is_refused_streamed_or_not(engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 140_000}]}
    for more in ({}, {"stream": True}):
        status, answer = engine.post("/v1/chat/completions", {**body, **more})
        assert status == 400
        assert answer["type"] == "BadRequestError"
        assert "is longer than the model's context length (131072 tokens)." in answer["message"]


def test_an_unknown_model_is_served_and_its_name_echoed(engine: Engine) -> None:
    assert engine.chat("Say hello", model="no-such-model")["model"] == "no-such-model"


def test_malformed_json_tells_where_the_server_keeps_its_source(engine: Engine) -> None:
    answer = engine.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b'Content-Length: 5\r\n\r\n{"a":'
    )
    assert b"400 Bad Request" in answer
    assert b"/srt/entrypoints/http_server.py" in answer


def test_a_cached_prompt_is_reported_and_quick(engine: Engine) -> None:
    prompt = filler("cached", 40_000)
    first, again = engine.chat(prompt), engine.chat(prompt)
    assert first["usage"]["prompt_tokens_details"] is None
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached % 64 == 0
    assert cached > 0.98 * again["usage"]["prompt_tokens"]


def test_flushing_the_cache_makes_the_next_prompt_new(engine: Engine) -> None:
    prompt = filler("flushed", 4000)
    engine.chat(prompt)
    assert engine.post("/flush_cache", {})[0] == 200
    assert engine.chat(prompt)["usage"]["prompt_tokens_details"] is None


# --- state


def test_the_effective_concurrency_is_the_state_pools_not_the_requested(engine: Engine) -> None:
    info = engine.json("/server_info")
    state = info["internal_states"][0]
    assert info["max_running_requests"] == 48, "what was asked for"
    assert state["effective_max_running_requests_per_dp"] == 7, "what runs"
    assert "max_running_requests is capped to 7 by the mamba state cache (max_mamba_cache_size=39, 5 state slots" in engine.log


def test_server_info_gives_the_keys_away_and_the_admin_key_alone_opens_control(tmp_path: Path) -> None:
    with running_lab(tmp_path) as lab:
        engine = lab.start(lab.seed_options() + " --api-key sk-one --admin-api-key sk-two").ready()
        one, two = "Authorization: Bearer sk-one\r\n", "Authorization: Bearer sk-two\r\n"
        status, body = engine.get("/server_info", one)
        info = json.loads(body)
        assert (status, info["api_key"], info["admin_api_key"]) == (200, "sk-one", "sk-two")
        assert engine.get("/server_info")[0] == 401
        assert engine.get("/health")[0] == 200, "open without a key"
        assert engine.get("/metrics")[0] == 200, "open without a key"
        assert engine.get("/flush_cache", one)[0] == 401
        assert engine.get("/flush_cache", two)[0] == 200


def test_health_takes_a_second_of_its_clock_and_generates_a_token(engine: Engine) -> None:
    before = engine.log.count("#new-token: 1,")
    began = time.monotonic()
    assert engine.get("/health")[0] == 200
    assert time.monotonic() - began >= 0.05
    assert engine.log.count("#new-token: 1,") == before + 1


def test_the_models_are_listed_and_others_not_found(engine: Engine) -> None:
    card = engine.json("/v1/models")["data"][0]
    assert (card["id"], card["max_model_len"]) == ("qwen3.8-27b", 131072)
    assert engine.get("/v1/models/qwen3.8-27b")[0] == 200
    assert engine.get("/v1/models/another")[0] == 404
    assert engine.get("/weight_version")[0] == 404


def test_the_drafts_accept_length_shows_everywhere(engine: Engine) -> None:
    engine.chat("Explain in detail how a cache works.", max_tokens=400)
    length = engine.json("/server_info")["internal_states"][0]["avg_spec_accept_length"]
    assert 2.0 <= length <= 2.6
    assert 2.0 <= (engine.metric("sglang:spec_accept_length") or 0) <= 2.65
    assert 2.0 <= engine.json("/v1/loads")["loads"][0]["speculative"]["accept_length"] <= 2.65
    assert re.search(r"accept len: 2\.\d\d, accept rate: 0\.\d\d", engine.log)


def test_the_log_lines_are_the_hybrid_models(engine: Engine) -> None:
    prefill = (
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d TP0\] Prefill batch, #new-seq: \d+, #new-token: \d+, #cached-token: \d+, "
        r"full token usage: \d\.\d\d, mamba usage: \d\.\d\d, #running-req: \d+, #queue-req: \d+, #pending-token: \d+, "
        r"cuda graph: (True|False), input throughput \(token/s\): [\d.]+$"
    )
    decode = (
        r"TP0\] Decode batch, #running-req: \d+, #full token: \d+, full token usage: \d\.\d\d, mamba num: \d+, "
        r"mamba usage: \d\.\d\d, accept len: \d\.\d\d, accept rate: \d\.\d\d, cuda graph: (True|False), "
        r"gen throughput \(token/s\): [\d.]+, #queue-req: \d+$"
    )
    engine.chat("Explain in detail how a cache works.", max_tokens=400)
    assert re.search(prefill, engine.log, re.MULTILINE)
    assert re.search(decode, engine.log, re.MULTILINE)


def test_every_card_holds_the_memory_it_should_and_the_kernel_knows_by_whom(lab: Lab, engine: Engine) -> None:
    pid = engine.scheduler_pid()
    inodes = {(lab.devices / f"nvidia{index}").stat().st_ino: index for index in range(4)}
    held = dict.fromkeys(range(4), 0)
    with open("/proc/locks", encoding="ascii") as locks:  # noqa: PTH123 - a line-by-line read of /proc
        for line in locks:
            fields = line.split()
            if fields[1] == "->":  # somebody who waits for the lock of the line before
                continue
            inode = int(fields[5].split(":")[2])
            if fields[1] == "POSIX" and int(fields[4]) == pid and inode in inodes:
                held[inodes[inode]] += int(fields[7]) - int(fields[6]) + 1
    assert all(21_000 < mib < 24_576 for mib in held.values()), held
    assert held[0] - held[1] == 1024, "the image transport is on the first card only"


def test_its_scheduler_can_be_told_by_name(engine: Engine) -> None:
    with open(f"/proc/{engine.scheduler_pid()}/comm", encoding="ascii") as name:  # noqa: PTH123 - /proc again
        assert name.read().strip() == "sglang::schedul"


# --- HTTP


def test_a_connection_serves_several_requests_and_bodies_in_chunks(engine: Engine) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Say hello"}], **{"max_tokens": 5}}).encode()
    half = len(body) // 2
    with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
        for _ in range(2):
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"%x\r\n%b\r\n" % (half, body[:half]))
        connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) - half, body[half:]))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_nonsense_on_the_wire_is_refused(engine: Engine) -> None:
    assert engine.raw(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 Bad Request")
    assert engine.get("/ping")[0] == 200


def test_a_client_that_goes_away_frees_its_place(engine: Engine) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Explain"}], "stream": True, "ignore_eos": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    before = engine.metric("sglang:num_aborted_requests_total") or 0
    engine.raw(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), limit=3000)
    wait_for(lambda: (engine.metric("sglang:num_aborted_requests_total") or 0) == before + 1, "the request is aborted")
    engine.chat("Say hello")
    wait_for(lambda: engine.json("/v1/loads")["loads"][0]["num_running_reqs"] == 0, "nothing runs")


def test_the_clock_can_be_changed_while_it_runs(lab: Lab, engine: Engine) -> None:
    def seconds() -> float:
        began = time.monotonic()
        engine.chat("Explain in detail how a cache works.", max_tokens=200)
        return time.monotonic() - began

    faults.set_clock(lab.control, 0.3)
    time.sleep(3 * REREAD_SECONDS)
    slow = seconds()
    faults.set_clock(lab.control, 60)
    time.sleep(3 * REREAD_SECONDS)
    assert slow > 3.0, "one of its own seconds"
    wait_for(lambda: seconds() < 3.0, "it is fast again")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_requests_are_logged_with_their_texts_from_level_2_on(tmp_path: Path, level: int) -> None:
    with running_lab(tmp_path) as lab:
        options = f"{lab.seed_options()} --log-requests --log-requests-level {level} --log-requests-format json"
        engine = lab.start(options).ready()
        streamed = engine.events("Say so", max_tokens=2)
        answer = engine.chat("Say zanzibar", temperature=0)
        assert answer["choices"][0]["message"]["content"] == "zanzibar"
        engine.kill()
        entries = [json.loads(line.partition("] ")[2]) for line in engine.log.splitlines() if '"event": "request.' in line]
        last = {entry["event"]: entry for entry in entries[-2:]}
        assert set(last) == {"request.received", "request.finished"}
        assert ("zanzibar" in json.dumps(last)) == (level >= 2)
        assert ("sampling_params" in last["request.received"]["obj"]) == (level >= 1)
        assert last["request.finished"]["out"]["meta_info"]["completion_tokens"] > 0
        assert [entry["rid"] for entry in entries[-3::2]] == [streamed[0]["id"], answer["id"]], "who served what can be told"


def test_lengths_that_are_no_numbers_are_refused(engine: Engine) -> None:
    assert engine.raw(b"POST /generate HTTP/1.1\r\nContent-Length: many\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert engine.raw(b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "change",
    [
        ("--chunked-prefill-size", "512"),
        ("--disable-cuda-graph", ""),
        ("--disable-radix-cache", ""),
        ("--mamba-radix-cache-strategy", "no_buffer"),
        ("--mamba-radix-cache-strategy", "extra_buffer_lazy"),
        ("--mamba-ssm-dtype", "bfloat16"),
        ("--kv-cache-dtype", "fp8_e4m3"),
        ("--max-total-tokens", "30000"),
        ("--max-mamba-cache-size", "20"),
        ("--page-size", "16"),
    ],
    ids=" ".join,
)
def test_other_settings_serve_short_and_long_prompts(tmp_path: Path, change: tuple[str, str]) -> None:
    with running_lab(tmp_path, clock=200) as lab:
        engine = lab.start(replace_option(lab.seed_options(), *change)).ready()
        assert engine.content("What is 17+25?") == "17+25 = 42."
        long = filler("long", 60_000)
        first, again = engine.chat(long, max_tokens=4), engine.chat(long, max_tokens=4)
        assert first["usage"]["prompt_tokens"] == again["usage"]["prompt_tokens"] > 10_000
        cached = (again["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        assert (cached > 10_000) == (change[0] != "--disable-radix-cache")
        if change[0] == "--chunked-prefill-size":
            assert engine.log.count("Prefill batch, #new-seq: 1, #new-token: 512,") > 20


def test_an_empty_prompt_is_refused(engine: Engine) -> None:
    assert engine.post("/generate", {"text": ""})[0] == 400
    assert engine.post("/v1/completions", {"prompt": ""})[0] == 400
