"""The smoke test's judgement, on the bytes of a real engine (SGLang 0.5.17) replayed over a socket.

The recorded model was random, so where a reply has to mean something, its text is put into a recorded envelope.
"""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lodger.checkout import CODE
from lodger.engines.client import Answer, Client, Stream, StreamEvent, dig
from lodger.engines.sglang import smoke, smoke_judgements, smoke_questions
from lodger.engines.sglang.smoke_judgements import EngineFacts, Expectation
from tests.unit.servers import answering, serving

DATA = CODE / "tests/unit/data" / "smoke"
EXPECT = Expectation(
    pool="qwen38",
    served_name="qwen3.8-27b",
    context_length=32768,
    max_running_requests=48,
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_coder",
    vision=True,
    min_accept_length=1.5,
)


@pytest.fixture
def plain() -> Callable[[str], Answer]:
    def read(name: str) -> Answer:
        with serving(answering((DATA / f"{name}.resp").read_bytes())) as server:
            return Client(server.url).get("/any", deadline=30)

    return read


@pytest.fixture
def streamed() -> Callable[[str], Stream]:
    def read(name: str) -> Stream:
        with serving(answering((DATA / f"{name}.resp").read_bytes())) as server:
            return Client(server.url).stream({}, deadline=30)

    return read


Plain = Callable[[str], Answer]
Streamed = Callable[[str], Stream]


def says(envelope: Answer, **message: Any) -> Answer:
    """Return a recorded reply whose message says something else."""
    body = json.loads(envelope.text)
    body["choices"][0]["message"].update(message)
    body["choices"][0]["finish_reason"] = "tool_calls" if message.get("tool_calls") else "stop"
    return replace(envelope, text=json.dumps(body))


def test_a_recorded_stream_has_its_tokens_its_usage_and_its_end(streamed: Streamed) -> None:
    stream = streamed("long_first")
    assert stream.trouble == ""
    assert (stream.complete, stream.done, stream.finish_reason) == (True, True, "length")
    assert stream.usage["completion_tokens"] == 8
    assert stream.ttft_s is not None
    assert stream.content


def test_a_stream_without_usage_is_complete_but_fails_the_check(streamed: Streamed) -> None:
    stream = streamed("st_no_usage")
    assert stream.complete
    check = smoke_judgements.judge_stream(stream, EXPECT)
    assert not check.passed
    assert "no usage" in check.detail
    assert smoke_judgements.judge_stream(streamed("long_first"), EXPECT).passed


@pytest.mark.parametrize(
    ("cut_at", "missing"), [(b'"finish_reason":"length"', "no final chunk"), (b"data: [DONE]", "no [DONE]")]
)
def test_a_stream_that_ends_early_with_http_200_is_a_failed_request(cut_at: bytes, missing: str) -> None:
    head, body = (DATA / "long_first.resp").read_bytes().split(b"\r\n\r\n", 1)
    head = head.replace(b"Transfer-Encoding: chunked\r\n", b"")  # so that closing the connection is a regular end of the body
    events = b"".join(line + b"\n\n" for line in body.split(b"\n") if line.startswith(b"data:"))
    with serving(answering(head + b"\r\n\r\n" + events[: events.index(cut_at)])) as server:
        stream = Client(server.url).stream({}, deadline=30)
    assert (stream.answer.status, stream.complete) == (200, False)
    check = smoke_judgements.judge_stream(stream, EXPECT)
    assert not check.passed
    assert missing in check.detail


def test_a_connection_that_breaks_in_a_chunk_is_told_as_such() -> None:
    recorded = (DATA / "long_first.resp").read_bytes()
    with serving(answering(recorded[: len(recorded) // 2])) as server:
        stream = Client(server.url).stream({}, deadline=30)
    assert stream.trouble.startswith("the connection failed")
    assert stream.events


def test_an_error_event_in_a_stream_is_a_failed_request() -> None:
    end = StreamEvent(0.2, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
    stream = Stream(Answer(200, "", 0.3), (StreamEvent(0.1, {"error": {"message": "ran out of pages"}}), end), done=True)
    assert "ran out of pages" in stream.trouble


def test_the_served_name_is_read_from_the_model_list(plain: Plain) -> None:
    models, info = plain("v1_models"), plain("model_info")
    assert smoke_judgements.judge_names(models, info, EXPECT).passed
    check = smoke_judgements.judge_names(models, info, replace(EXPECT, served_name="qwen4"))
    assert not check.passed
    assert check.setting == "pools.qwen38.model"
    assert "serves qwen3.8-27b instead of qwen4" in check.detail
    refused = plain("apikey_nokey_chat")
    assert refused.trouble == "HTTP 401: Unauthorized"
    assert not smoke_judgements.judge_names(refused, info, EXPECT).passed


def test_the_context_length_is_what_the_server_tells_its_clients(plain: Plain) -> None:
    assert smoke_judgements.judge_context(plain("v1_models"), EXPECT).passed
    check = smoke_judgements.judge_context(plain("v1_models"), replace(EXPECT, context_length=131072))
    assert (check.passed, check.setting) == (False, "pools.qwen38.context_length")


def test_only_the_effective_concurrency_counts(plain: Plain) -> None:
    facts = EngineFacts.of(plain("server_info_ngram").body)
    assert smoke_judgements.judge_concurrency(facts, EXPECT).passed
    for declared, said in ((64, "only 48 of the declared 64"), (8, "the engine was not started with that setting")):
        check = smoke_judgements.judge_concurrency(facts, replace(EXPECT, max_running_requests=declared))
        assert (check.passed, check.setting) == (False, "pools.qwen38.max_running_requests")
        assert said in check.detail
    assert not smoke_judgements.judge_concurrency(EngineFacts.of(None), EXPECT).passed


def test_no_key_of_the_server_is_kept(plain: Plain) -> None:
    body = json.loads(plain("server_info_ngram").text) | {"api_key": "sk-secret", "admin_api_key": "sk-admin"}
    answer = Answer(200, json.dumps(body), 0.1)
    assert "sk-" not in repr(EngineFacts.of(answer.body))
    assert "sk-" not in repr(answer)


def test_the_kv_pool_is_held_against_its_floor(plain: Plain) -> None:
    facts = EngineFacts.of(plain("server_info").body)
    assert smoke_judgements.judge_kv_pool(facts, 3_615_086, EXPECT).passed
    check = smoke_judgements.judge_kv_pool(facts, 3_615_087, EXPECT)
    assert (check.passed, check.setting) == (False, "pools.qwen38.mem_fraction_static")


def test_known_answers_tell_garbage_from_language(plain: Plain) -> None:
    garbage = plain("ns_nothink")
    right = says(garbage, content="17 + 25 is 42.")
    assert smoke_judgements.judge_sums([("17 + 25", "42", right)], EXPECT).passed
    for wrong in (garbage, says(garbage, content="It is 142."), says(garbage, content="It is 421.")):
        check = smoke_judgements.judge_sums([("17 + 25", "42", right), ("17 + 25", "42", wrong)], EXPECT)
        assert (check.passed, check.setting) == (False, "pools.qwen38.model")
    swallowed = smoke_judgements.judge_sums([("17 + 25", "42", plain("ns_think"))], EXPECT)
    assert (swallowed.passed, swallowed.setting) == (False, "pools.qwen38.reasoning_parser")
    assert "401" in smoke_judgements.judge_sums([("17 + 25", "42", plain("apikey_nokey_chat"))], EXPECT).detail


def test_thinking_belongs_into_reasoning_content(plain: Plain) -> None:
    assert smoke_judgements.judge_thinking(plain("ns_think"), EXPECT).passed, (
        "cut off while thinking: all of it is where it belongs"
    )
    assert smoke_judgements.judge_thinking(says(plain("ns_think"), content="42"), EXPECT).passed
    left_in_content = plain("ns_think_then_answer")  # recorded with </think> in content
    for bad in (left_in_content, plain("ns_nothink"), says(plain("ns_think"))):
        check = smoke_judgements.judge_thinking(bad, EXPECT)
        assert (check.passed, check.setting) == (False, "pools.qwen38.reasoning_parser")
        assert "qwen3" in check.detail


def test_a_tool_call_belongs_into_tool_calls(plain: Plain) -> None:
    recorded = plain("tools_required")
    call = dig(recorded.body, "choices", 0, "message", "tool_calls", 0)
    call["function"] = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert smoke_judgements.judge_tool_call(says(recorded, tool_calls=[call]), EXPECT).passed
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
    as_text = smoke_judgements.judge_tool_call(says(plain("tools_auto"), content=text), replace(EXPECT, tool_call_parser=None))
    assert (as_text.passed, as_text.setting) == (False, "pools.qwen38.tool_call_parser")
    assert "left as text" in as_text.detail
    assert "declared is none" in as_text.detail
    assert "no tool was called" in smoke_judgements.judge_tool_call(plain("tools_auto"), EXPECT).detail
    assert "parsed wrongly" in smoke_judgements.judge_tool_call(plain("tools_required"), EXPECT).detail


def test_a_picture_must_be_seen(plain: Plain) -> None:
    reply = plain("ns_nothink")
    assert smoke_judgements.judge_image(says(reply, content="It is Red."), EXPECT).passed
    assert not smoke_judgements.judge_image(says(reply, content="I cannot see pictures, they are rendered."), EXPECT).passed
    refused = smoke_judgements.judge_image(plain("err_overlong"), EXPECT)
    assert (refused.passed, refused.setting) == (False, "pools.qwen38.extra_args")


def test_an_overlong_prompt_must_be_refused_plain_and_streamed(plain: Plain, streamed: Streamed) -> None:
    refused, refused_stream = plain("err_overlong"), streamed("err_overlong_stream").answer
    assert smoke_judgements.judge_overlong(refused, refused_stream, EXPECT).passed
    accepted = plain("err_unknown_model")
    for pair in ((accepted, refused_stream), (refused, accepted), (plain("apikey_nokey_chat"), refused_stream)):
        check = smoke_judgements.judge_overlong(*pair, EXPECT)
        assert (check.passed, check.setting) == (False, "pools.qwen38.context_length")


def test_a_dead_draft_shows_in_the_accept_length_alone(plain: Plain) -> None:
    alive, metrics = EngineFacts.of(plain("server_info_ngram").body), plain("metrics_ngram")
    assert smoke_judgements.judge_accept_length(alive, metrics, 1.5, EXPECT).passed
    check = smoke_judgements.judge_accept_length(replace(alive, avg_spec_accept_length=1.03), metrics, 1.5, EXPECT)
    assert (check.passed, check.setting) == (False, "pools.qwen38.draft")
    assert "1.03" in check.detail


def test_without_server_info_the_accept_length_is_read_from_the_metrics(plain: Plain) -> None:
    silent = EngineFacts.of(plain("server_info").body)
    assert silent.avg_spec_accept_length is None
    assert smoke_judgements.metric(plain("metrics_ngram").text, "sglang:spec_accept_length") == 7.0
    assert smoke_judgements.judge_accept_length(silent, plain("metrics_ngram"), 1.5, EXPECT).passed
    assert not smoke_judgements.judge_accept_length(silent, plain("apikey_nokey_chat"), 1.5, EXPECT).passed


def test_one_broken_long_prompt_or_an_engine_unwell_after_them_fails_the_soak(plain: Plain, streamed: Streamed) -> None:
    well, stream = plain("model_info"), streamed("long_first")
    good = (stream.content[:5], stream)
    assert smoke_judgements.judge_soak([good, good], well, EXPECT).passed
    broken = (good[0], replace(stream, done=False))
    for found, health in (([good, broken], well), ([good, good], plain("apikey_nokey_chat"))):
        check = smoke_judgements.judge_soak(found, health, EXPECT)
        assert (check.passed, check.setting) == (False, "pools.qwen38.mem_fraction_static")
    garbled = smoke_judgements.judge_soak([good, ("48213", stream)], well, EXPECT)
    assert (garbled.passed, garbled.setting) == (False, "pools.qwen38.model")


def test_a_setting_of_the_worker_itself_is_named_where_it_stands() -> None:
    own = replace(EXPECT, own=frozenset({"tool_call_parser"}), own_path="node1: workers.a.engine")
    assert own.setting("tool_call_parser") == "node1: workers.a.engine.tool_call_parser"
    assert own.setting("reasoning_parser") == "pools.qwen38.reasoning_parser"


def test_a_server_that_answers_nothing_ends_the_smoke_test_at_once() -> None:
    told: list[smoke_judgements.SmokeCheck] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    report = smoke.smoke(Client(f"http://127.0.0.1:{port}"), EXPECT, told.append)
    assert [check.name for check in report.checks] == ["model name"]
    assert tuple(told) == report.failures == report.checks
    assert not report.passed


def test_the_picture_is_a_red_square() -> None:
    data = smoke_questions.png(4, (255, 0, 0))
    assert data.startswith(b"\x89PNG")
    at = data.index(b"IDAT")
    length = int.from_bytes(data[at - 4 : at])
    assert zlib.decompress(data[at + 4 : at + 4 + length]) == (b"\x00" + b"\xff\x00\x00" * 4) * 4
    assert zlib.crc32(data[at : at + 4 + length]) == int.from_bytes(data[at + 4 + length : at + 8 + length])
