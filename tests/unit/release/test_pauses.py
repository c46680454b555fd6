"""GPUs given back: what is recorded and said, until when, what a run then asks of the worker, and what brings it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodger.errors import Refused, UsageError
from lodger.release import pauses
from lodger.release.pauses import Pause
from tests.unit.readings import deployed, record
from tests.unit.states.support_pauses import TODAY


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("18:00", "2026-11-29 18:00"),
        ("13:58", "2026-11-29 13:58"),
        ("2026-11-30 06:00", "2026-11-30 06:00"),
        ("2026-12-01 9:05", "2026-12-01 09:05"),
    ],
)
def test_a_time_is_taken_by_the_hosts_clock(said: str, meant: str) -> None:
    assert pauses.resolve(said, TODAY) == meant


@pytest.mark.parametrize("said", ["13:57", "06:00", "2026-11-28 23:59"])
def test_a_time_that_is_past_is_refused_and_the_hint_says_how_to_write_another_day(said: str) -> None:
    with pytest.raises(Refused) as caught:
        pauses.resolve(said, TODAY)
    assert TODAY in caught.value.cause
    assert "YYYY-MM-DD" in caught.value.hint


@pytest.mark.parametrize(
    "said",
    [
        "",
        "six",
        "24:00",
        "18:60",
        "18",
        "18:00:00",
        "2026-02-30 10:00",
        "2026-1-30 10:00",
        "tomorrow 10:00",
        "\N{ARABIC-INDIC DIGIT ONE}8:00",
    ],
)
def test_what_is_no_time_is_bad_usage(said: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        pauses.check(said)


def test_the_hosts_clock_is_read_or_is_unreadable() -> None:
    assert pauses.NOW.parse(f"{TODAY}\n") == TODAY
    with pytest.raises(ValueError, match="does not match"):
        pauses.NOW.parse("no clock\n")


@given(st.text(max_size=20), st.text(max_size=40))
def test_a_record_says_the_same_when_it_is_read_again(who: str, waits: str) -> None:
    pause = Pause("a", (0, 1), who, TODAY, "2026-11-29 18:00", waits)
    assert Pause.load("a", pause.text) == pause


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"gpus": 3}'])
def test_a_record_that_nobody_can_read_is_a_pause_all_the_same(text: str) -> None:
    there = deployed(files=record("paused/lodger-worker-a", text))
    assert pauses.paused(there) == {"worker-a": Pause("a")}


def test_what_is_being_written_beside_a_record_is_none() -> None:
    assert pauses.paused(deployed(files=record("paused/lodger-worker-a.new", ""))) == {}


def test_the_message_names_gpus_end_worker_and_who_to_tell() -> None:
    said = Pause("a", (0, 1, 2, 3), "wang", TODAY, "2026-11-29 18:00").motd
    assert said.startswith("GPUs 0 1 2 3 are free until 2026-11-29 18:00: Lodger's worker a is paused by wang.\n")
    assert "tell wang" in said
    assert Pause("a", (5,), "wang", TODAY).motd.startswith("GPU 5 is free: ")
