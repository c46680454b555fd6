"""The loop: whose turn it is, and when a witness is asked. The host is a table of readings that commands change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from lodger.errors import Refused, StateFailed
from lodger.locks.pool_lock import PoolLock
from lodger.run.ledger import Ledger
from lodger.run.outcome import Status
from tests.unit.readings import captured
from tests.unit.run.support_engine import Walk, Whole, group

DRAINED, READY, JOINED = "drained(a)", "ready(a)", "joined(a)"


@pytest.mark.parametrize(
    ("holds", "asked"),
    [([], ["a"]), ([JOINED], ["a"]), ([READY, JOINED], ["a"]), ([DRAINED, JOINED], ["a"]), ([DRAINED, READY, JOINED], [])],
)
def test_a_witness_is_asked_once_when_anything_of_its_group_was_done(holds: list[str], asked: list[str]) -> None:
    """The last state may hold already: with no router, or one that waits for the worker, there is nothing to join."""
    walk = Walk(group("a", "pool", "drained", "ready", "joined"), holds)
    marks = walk.go()
    assert walk.asked == asked
    assert [name for name, mark in marks.items() if mark is Status.SATISFIED] == [n for n in marks if n in holds]


def test_a_witness_of_another_item_is_not_asked_for_what_was_done_to_the_first() -> None:
    walk = Walk([*group("a", "pool", "ready", "joined"), *group("b", "pool", "ready", "joined")], ["ready(b)", "joined(b)"])
    walk.go()
    assert walk.asked == ["a"]


def test_a_witness_that_disagrees_fails_the_run_though_the_last_state_held() -> None:
    with pytest.raises(StateFailed, match="a witness disagrees"):
        Walk(group("a", "pool", "ready", "joined"), [JOINED], disagrees="it is down").go()


class Told(PoolLock):
    """The turns of a run as they are taken and given back."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.looked: list[str] = []

    def take(self, pools: Sequence[str], waiting: Callable[[str], None]) -> None:
        self.told += [f"take {pool}" for pool in pools]
        waiting("eve")

    def look(self, pools: Collection[str]) -> None:
        self.looked = sorted(pools)

    def check(self) -> None:
        """It is never lost here."""

    def give_back(self) -> None:
        self.told.append("give back")


@pytest.mark.parametrize(
    ("holds", "told"),
    [
        ([], ["take p", "take p", "give back"]),
        ([JOINED], ["take p", "give back"]),
        ([READY, JOINED], ["give back"]),
    ],
)
def test_a_turn_is_kept_from_the_first_state_that_does_something_to_the_last_of_its_group(
    holds: list[str], told: list[str]
) -> None:
    walk = Walk(group("a", "p", "ready", "joined"), holds)
    walk.session.pool_lock = turns = Told()
    walk.go()
    assert turns.told == told


def test_what_was_waited_for_is_read_again_before_anything_is_done() -> None:
    """Whoever had the turn may have done it: a worker that another run was draining is not put back in."""
    walk = Walk(group("a", "p", "ready", "joined"), [READY])

    class Meanwhile(Told):
        def take(self, pools: Sequence[str], waiting: Callable[[str], None]) -> None:
            super().take(pools, waiting)
            walk.connection.holds.add(JOINED)

    walk.session.pool_lock = Meanwhile()
    walk.go()
    assert "set joined(a)" not in walk.connection.ran


def test_a_run_whose_turn_was_taken_stops_before_its_next_command() -> None:
    walk = Walk(group("a", "p", "drained", "ready", "joined"))

    class Taken(Told):
        def check(self) -> None:
            if "set drained(a)" in walk.connection.ran:
                raise StateFailed("the lock of pool p was taken over by another run")

    walk.session.pool_lock = Taken()
    with pytest.raises(StateFailed, match="was taken over by another run"):
        walk.go()
    assert [script for script in walk.connection.ran if script.startswith("set ")] == ["set drained(a)"]


def test_what_a_run_did_whose_turn_was_taken_is_undone() -> None:
    class Taken(Told):
        def check(self) -> None:
            if "take p" in self.told:
                raise StateFailed("the lock of pool p was taken over by another run")

    turns = Taken()
    run = Whole([*group("before", "", "ready"), *group("a", "p", "ready", "joined")], turns)
    assert run.acted == ["set ready(before)", "unset ready(before)"]
    assert run.outcome.error is not None
    assert run.outcome.error.what == "the lock of pool p was taken over by another run"
    assert (run.outcome.status, turns.told[-1]) == (Status.FAILED, "give back")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_turn_that_only_a_person_may_take_over_refuses_the_run_before_anything_is_done(resumed: bool) -> None:
    """And before anything that an earlier run began is undone."""

    class Silent(Told):
        def look(self, pools: Collection[str]) -> None:
            raise Refused(f"pool {min(pools)} is held by another run")

    before = captured("node1").dump()
    ledger = Ledger("earlier", "deploy", {}, "u", before, ("ready(before)",)).text() if resumed else ""
    run = Whole([*group("before", "", "ready"), *group("a", "p", "ready")], Silent(), ledger=ledger)
    assert isinstance(run.error, Refused)
    assert (run.error.what, run.acted) == ("pool p is held by another run", [])


def test_turns_are_looked_at_that_are_due() -> None:
    turns = Told()
    Whole([*group("a", "p", "ready", "joined"), *group("b", "q", "ready")], turns, holds=["ready(b)", "ready(a)"])
    assert turns.looked == ["p"]
