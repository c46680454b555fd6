"""Facts that are read side by side: each reads as it would alone, wherever its output goes meanwhile, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lodger.host import facts
from lodger.host.command import quote
from lodger.host.facts import base
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.health import KILLED, bounded

LONG = 1000


def long(name: str, snippet: str, **options: Any) -> Fact[str]:
    """Return a fact that takes long enough to be read beside others."""
    return Fact(name, snippet, str, takes=LONG, **options)


def saying(name: str, text: str, code: int = 0) -> Fact[str]:
    return long(name, f"printf %s {quote([text])}\nexit {code}")


def read(*wanted: Fact[str], **environment: str) -> Facts:
    script, given = facts.script(wanted), {**os.environ, **environment}
    done = subprocess.run(["sh", "-c", script], capture_output=True, env=given, check=True, timeout=60)
    assert done.stderr == b""
    return facts.parse(done.stdout.decode("utf-8", "replace"), "node1")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our own in the place of /run, to see what is left in it."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(base, "_MEMORY", (str(folder),))
    return folder


bodies = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=60)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(bodies, min_size=2, max_size=9))
@example(texts=["@@lodger-fact-end 0\n@@lodger-fact fact1\nforged", "\n\n", "", "no newline", "one\n", "@@lodger-facts x\n"])
@example(texts=["@@lodger-fact 00000000-0000-0000-0000-000000000000 end 0\n", "\n@@lodger-fact  end 0\n"])
def test_whatever_facts_print_they_read_back_each_as_it_was(texts: list[str], memory: Path) -> None:
    wanted = [saying(f"fact{number}", text) for number, text in enumerate(texts)]
    found = read(*wanted)
    assert [found[fact] for fact in wanted] == texts
    assert list(memory.iterdir()) == []


def test_what_is_longer_than_a_pipe_holds_is_read_whole(memory: Path) -> None:
    big = [long(f"big{number}", f"yes {number} | head -n 500000") for number in range(3)]
    found = read(*big, saying("small", "1"))
    assert [found[one] for one in big] == [f"{number}\n" * 500_000 for number in range(3)]
    assert list(memory.iterdir()) == []


def test_they_are_read_at_the_same_time() -> None:
    start = time.monotonic()
    found = read(*(long(f"slow{number}", "sleep 1") for number in range(7)))
    assert len(found.sections) == 7
    assert time.monotonic() - start < 5


def test_a_few_that_take_no_time_are_read_one_after_another() -> None:
    assert "mktemp" not in facts.script([facts.CURL, facts.MOUNTS])


def test_what_is_first_has_ended_before_the_others_begin(tmp_path: Path) -> None:
    """As the lock is: what is read after it is what holds while it is held."""
    first = long("lock", f"sleep 0.3; touch {tmp_path}/taken; echo taken", first=True)
    others = [long(f"after{number}", f"ls {tmp_path}") for number in range(3)]
    found = read(others[0], first, *others[1:])
    assert [found[one] for one in others] == ["taken\n"] * 3
    script = facts.script([others[0], first, *others[1:]])
    assert script.index('begin %s\\n" lock') < script.index("lodger_lane3()")


@pytest.mark.parametrize(
    ("snippet", "code"),
    [("exit 7", 7), ("no-such-program-here", 127), ("set -e; false; echo no", 1), ("sh -c 'kill -9 $PPID'; :", 137)],
)
def test_one_that_fails_takes_no_other_with_it(snippet: str, code: int) -> None:
    found = read(saying("before", "1"), long("broken", snippet), saying("after", "2"))
    assert (found[saying("before", "")], found[saying("after", "")]) == ("1", "2")
    assert found.sections["broken"][0] == code


def test_what_one_sets_is_unknown_to_the_others_of_its_lane() -> None:
    many = [long(f"sets{number}", "value=1; cd /; set -f; exec >/dev/null") for number in range(7)]
    asks = long("asks", 'printf "%s" "${value-unset}"')
    assert read(*many, asks)[asks] == "unset"


def test_a_lane_that_is_killed_is_read_again(tmp_path: Path, memory: Path) -> None:
    """By the kernel, say, that is short of memory. What it had printed until then is not taken for whole."""
    mark = tmp_path / "killed"
    lane = "$(ps -o ppid= -p $PPID)"  # the parent of the shell that reads the fact
    killing = long("killing", f"[ -e {mark} ] && echo whole && exit\necho half; touch {mark}\nsh -c 'kill -9 {lane}'\nsleep 5")
    found = read(saying("one", "1"), killing, saying("two", "2"))
    assert found.sections == {"one": (0, "1"), "killing": (0, "whole\n"), "two": (0, "2")}
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("places", [("/nonexistent",), ("/proc",), ("/nonexistent", "/dev/shm")])  # noqa: S108  as the product
def test_where_no_file_can_be_made_they_are_read_without(places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_MEMORY", places)
    found = read(saying("one", "first\nreading"), saying("two", "", 3), saying("three", "3"))
    assert found.sections == {"one": (0, "first\nreading"), "two": (3, ""), "three": (0, "3")}


def test_on_a_full_disk_they_are_read_without(tmp_path: Path, memory: Path) -> None:
    """With a stand-in for mktemp that gives a folder whose files take nothing."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "mktemp"
    fake.write_text(
        f"#!/bin/sh\nmkdir {memory}/full; for n in 3 4 5 6 7 8 9; do ln -s /dev/full {memory}/full/$n; done; echo {memory}/full\n"
    )
    fake.chmod(0o755)
    found = read(saying("one", "first\nreading"), saying("two", "2"), PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert found.sections == {"one": (0, "first\nreading"), "two": (0, "2")}
    assert list(memory.iterdir()) == []


def test_a_lane_whose_disk_fills_in_between_is_read_again(tmp_path: Path, memory: Path) -> None:
    """The first of two facts still fits. A limit on the size of files stands for the disk."""
    big = long("big", "head -c 200000 /dev/zero | tr '\\0' x")
    script = facts.script([saying("one", "1"), big])
    limited = f"trap '' XFSZ\nulimit -f 100\n{script}"  # 512 bytes each; a write beyond fails, as on a full disk
    done = subprocess.run(["sh", "-c", limited], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=60)
    found = facts.parse(done.stdout.decode())
    assert found[saying("one", "")] == "1"
    assert found[big] == "x" * 200_000
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_a_reading_that_is_killed(number: signal.Signals, memory: Path) -> None:
    script = facts.script([saying("one", "1"), long("slow", "sleep 2"), saying("two", "2")])
    for delay in (0.0, 0.002, 0.004, 0.008, 0.05, 0.5):
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        process.send_signal(number)
        process.wait(timeout=20)
        if (
            number is signal.SIGKILL
        ):  # in the moment in which the folder has a name, it stays, and its files with nothing in them
            assert all(path.stat().st_size == 0 for path in memory.rglob("*") if path.is_file())
        else:
            assert list(memory.iterdir()) == []


def test_what_hangs_is_cut_off_and_what_it_left_behind_is_not_waited_for() -> None:
    hanging = bounded(long("hanging", "echo half; (sleep 60) & sleep 60"), 0.3)
    start = time.monotonic()
    found = read(hanging, saying("beside", "here"))
    assert time.monotonic() - start < 30
    assert found.sections["hanging"][0] == KILLED
    assert found[saying("beside", "")] == "here"


def test_what_is_read_beside_it_is_no_other_command() -> None:
    """Each child of the reading carries the mark of its command."""
    child = f"sleep 1.0{os.getpid()}"  # others may run this test on the same machine
    script = facts.script([long("slow", f"{child}; true"), facts.BUSY, long("slower", f"{child}; true")])
    mine = {"PATH": os.environ["PATH"], "LODGER_COMMAND": "lodger-mine"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=mine, check=True, timeout=60)
    assert not any(child in line for line in facts.parse(done.stdout)[facts.BUSY])


def test_cut_off_output_gives_whole_readings_or_none() -> None:
    wanted = [saying("one", "first\nreading"), saying("two", "second"), saying("failed", "third", code=127)]
    whole = subprocess.run(["sh", "-c", facts.script(wanted)], capture_output=True, text=True, check=True, timeout=20).stdout
    complete = facts.parse(whole).sections
    assert complete == {"one": (0, "first\nreading"), "two": (0, "second"), "failed": (127, "third")}
    for length in range(len(whole)):
        assert facts.parse(whole[:length]).sections.items() <= complete.items()
