"""What the simulated model says, and how it is cut into tokens and told apart."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.engine.sglang import chat, text
from lab.engine.sglang.chat import Limits, Parsing, calls_of, pieces_of, script
from lab.engine.sglang.picture import NotAPicture, describe
from lab.engine.sglang.reply import Answer, answer, arithmetic, example

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the current weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def said(question: str, tools: list[dict[str, Any]] | None = None, choice: Any = "auto") -> Answer:
    return answer([{"role": "user", "content": question}], tools or [], choice, None)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from("+-*"))
def test_sums_are_right(first: int, second: int, sign: str) -> None:
    result = {"+": first + second, "-": first - second, "*": first * second}[sign]
    worked = arithmetic(f"What is {first} {sign} {second}?")
    assert worked is not None
    assert float(worked.split("= ")[1]) == pytest.approx(result, rel=1e-9)


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        ("What is 17+25?", "17+25 = 42."),
        ("How much is 60 / 4?", "60 / 4 = 15."),
        ("What is the sum of 40 and 2?", "40 + 2 = 42."),
        ("1+2*3-4/2", "1+2*3-4/2 = 5."),
        ("17加25等于几", "17 + 25 = 42。"),
        ("Reply with exactly: pong", "pong"),
        ("Say hello", "hello"),
        ("What is the capital of France?", "Paris."),
        ("The secret code is XK-421. Some more words. What is the secret code?", "The secret code is XK-421."),
        ("Count to 5", "1, 2, 3, 4, 5."),
    ],
)
def test_questions_with_a_known_answer_get_it(question: str, reply: str) -> None:
    assert said(question).content == reply


def test_a_needle_is_found_in_a_long_text() -> None:
    haystack = "the sky is wide. " * 2000 + "The magic number is 7741. " + "the sea is deep. " * 2000
    assert "7741" in said(haystack + "\nWhat is the magic number?").content


def test_the_same_request_gets_the_same_reply() -> None:
    assert said("Explain how a cache works.") == said("Explain how a cache works.")


def test_a_tool_is_called_when_the_question_fits_or_it_is_forced() -> None:
    assert said("What is the weather in Paris?", [WEATHER]).calls == [("get_weather", {"city": "Paris"})]
    assert said("Good morning", [WEATHER]).calls == []
    assert said("Good morning", [WEATHER], "required").calls[0][0] == "get_weather"
    assert said("What is the weather in Paris?", [WEATHER], "none").calls == []


def test_a_tools_result_is_used() -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": "{}"}}]},
        {"role": "tool", "content": "21 degrees"},
    ]
    assert "21 degrees" in answer(turns, [WEATHER], "auto", None).content


def test_a_schema_is_filled() -> None:
    schema = {
        "type": "object",
        "properties": {
            "mode": {"type": "string", "enum": ["fast", "slow"]},
            "count": {"type": "integer"},
            "tags": {"type": "array"},
        },
        "required": ["mode", "count", "tags"],
    }
    value = example(schema, "slow, 3 times")
    assert value["mode"] == "slow"
    assert value["count"] == 3
    assert isinstance(value["tags"], list)


def png(colour: tuple[int, int, int], size: int = 16, method: int = 0) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes(colour) * size
    if method == 1:
        row = bytes(colour) + b"\0" * (3 * (size - 1))
    rows = b"".join(bytes([method]) + row for _ in range(size))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize("method", [0, 1])
def test_a_picture_is_described(method: int) -> None:
    assert describe(png((250, 10, 10), method=method)) == "The image is 16 by 16 pixels and mostly red."
    assert "blue" in describe(png((20, 40, 230), method=method))


@pytest.mark.parametrize("url", ["http://example.invalid/a.png", "data:image/png;base64,AAAA", "data:image/png;base64,?"])
def test_what_is_no_picture_is_refused(url: str) -> None:
    with pytest.raises(NotAPicture):
        describe(url)


@given(st.text())
def test_pieces_join_to_the_text(whole: str) -> None:
    assert "".join(text.split(whole)) == whole


CALL = Answer("thought", "", [("get_weather", {"city": "Paris", "days": 2})])


def test_parsed_the_call_leaves_the_content() -> None:
    pieces = pieces_of(CALL, True, Parsing(reasoning=True, calls=True))
    done = script(pieces, Limits(1000, eos=9))
    assert done.shown("content") == ""
    assert done.shown("reasoning") == "thought"
    calls = calls_of(pieces)
    assert calls is not None
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris", "days": 2}
    assert done.finish == "tool_calls"


def test_unparsed_everything_stays_in_the_content() -> None:
    pieces = pieces_of(CALL, True, Parsing(reasoning=False, calls=False))
    shown = script(pieces, Limits(1000)).shown("content")
    assert shown.startswith(
        "<think>\nthought\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>"
    )
    assert calls_of(pieces) is None


def test_a_forced_call_is_json_whatever_parser_is_set() -> None:
    pieces = pieces_of(CALL, False, Parsing(reasoning=False, calls=False, forced=True))
    calls = calls_of(pieces)
    assert calls is not None
    assert json.loads(calls[0]["function"]["arguments"])["city"] == "Paris"


def test_thinking_that_is_cut_off_leaves_no_content() -> None:
    pieces = pieces_of(Answer("a long thought about it", "the reply"), True, Parsing(True, True))
    done = script(pieces, Limits(4))
    assert (done.finish, done.tokens, done.shown("content")) == ("length", 4, "")
    assert done.shown("reasoning")


@given(st.integers(0, 60))
def test_max_tokens_is_honoured(limit: int) -> None:
    pieces = pieces_of(Answer("", "one two three four five six seven eight nine ten"), False, Parsing(True, True))
    done = script(pieces, Limits(limit, eos=9))
    assert done.tokens <= limit
    assert (done.finish == "stop") == (limit > len(pieces))
    assert len(done.output(1000, 9)) == done.tokens


def test_a_stop_string_ends_the_reply_before_itself() -> None:
    pieces = pieces_of(Answer("", "one two three four"), False, Parsing(True, True))
    done = script(pieces, Limits(100, stops=("o thr",)))
    assert done.shown("content") == "one tw"
    assert (done.finish, done.matched) == ("stop", "o thr")


def test_ignoring_the_end_fills_up_to_the_limit() -> None:
    pieces = pieces_of(Answer("", "short"), False, Parsing(True, True))
    done = script(pieces, Limits(500, ignore_eos=True))
    assert (done.tokens, done.finish) == (500, "length")
    assert len(done.between(0, 500)) == 500
    assert "".join(piece.text for piece in done.between(100, 200)) in done.shown("content")


def test_switching_thinking_off_adds_to_the_same_prompt() -> None:
    turns = [{"role": "user", "content": "hello"}]
    thinking, plain = chat.prompt(turns, [], True, 0), chat.prompt(turns, [], False, 0)
    assert plain[: len(thinking)] == thinking
    assert len(plain) > len(thinking)
