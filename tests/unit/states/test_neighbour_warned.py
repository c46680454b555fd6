"""Telling the people behind a neighbour before it is paused, and that it is over: once a run, and never for another one."""

from __future__ import annotations

import json
import subprocess

import pytest

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.states.base import NoUndo
from lodger.states.neighbour_told import NeighbourTold
from lodger.states.neighbour_warned import NeighbourWarned
from tests.unit.readings import base, deployed, readings, record

BEGAN = 1_700_000_000


def at(told: str = "", *, began: int | None = BEGAN) -> Facts:
    """A host where people were ``told`` at that clock, in a run that began at ``began`` (None: nothing is begun)."""
    machine = f"id\nboot\nnode1\n6.8.0\n99.5 1\n{began}\n12:00\nsystemd 255\n"
    before = Facts({facts.MACHINE.name: (0, machine)})
    ledger = json.dumps({"stops": [], "before": before.dump()}) if began is not None else ""
    files = record("warned/aigc", told) if told else {}
    return readings({**base(deployed=deployed(files=files)), facts.LEDGER: ledger})


def warned(*, reached: bool = False) -> NeighbourWarned:
    return NeighbourWarned("aigc", "echo $WHEN $MINUTES", 5, lambda _: reached, [])


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (at(), False),
        (at(f"{BEGAN + 60}\n"), True),
        (at(f"{BEGAN - 86400}\n"), False),  # by a run that was undone last week
        (at("told\n"), False),
        (at(f"{BEGAN + 60}\n", began=None), False),
    ],
)
def test_what_an_earlier_run_said_is_no_warning_of_this_one(read: Facts, told: bool) -> None:
    assert (warned().missing(read) == "") is told
    assert warned(reached=True).missing(read) == ""


def test_whoever_was_told_hears_that_it_is_over_when_the_run_ends_and_when_it_is_undone() -> None:
    told = NeighbourTold("aigc", "echo $WHEN $MINUTES")
    for read in (at(), at(f"{BEGAN + 60}\n")):
        known = read[facts.DEPLOYED].files == {}
        assert (told.missing(read) == "") is known
        assert isinstance(warned().undo(read, read), NoUndo) is known
        assert (warned().undone(read, read) == "") is known
    undo = warned().undo(at(), at(f"{BEGAN + 60}\n"))
    assert not isinstance(undo, NoUndo)
    assert [str(command) for command in undo] == [str(command) for command in told.act(at())]
    tell, spend = undo
    assert subprocess.run(["sh", "-c", tell.script], capture_output=True, text=True, check=True).stdout == "after 0\n"
    assert 7 in tell.ok, "an upgrade that went well is not undone because nobody could be told"
    assert spend.script == "rm -f /var/lib/lodger/warned/aigc"


def test_the_warning_says_when_and_is_written_down_after_the_wait() -> None:
    tell, wait, note = warned().act(at())
    assert subprocess.run(["sh", "-c", tell.script], capture_output=True, text=True, check=True).stdout == "before 5\n"
    assert (wait.script, tell.ok) == ("sleep 300", (0,))
    assert "date +%s" in note.script
