"""The loop: whose turn it is, and when a witness is asked. The host is a table of readings that commands change."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import pytest

from lodger.errors import ConnectionLost, LockLost, LodgerError, Refused, StateFailed
from lodger.host import facts, paths
from lodger.host.command import Command, Result, Transport
from lodger.host.facts.base import Fact, Facts
from lodger.locks.pool_lock import PoolLock
from lodger.locks.process_queue import PoolQueue
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult, Status
from lodger.run.runner import Plan, Runner, _Progress
from lodger.states.base import Blocker, State, Step
from tests.unit.readings import captured

FIRST: tuple[Fact[Any], ...] = (facts.MACHINE, facts.DEPLOYED, *facts.FOOTPRINT)


class Host:
    """A connection to a host that knows of each state whether it holds; ``set NAME`` makes one hold."""

    def __init__(self, name: str, holds: Sequence[str]) -> None:
        self.host, self.holds, self.round_trips = name, set(holds), 0
        self.ran: list[str] = []
        self.texts: dict[str, str] = {}
        self.broken: dict[str, LodgerError] = {}
        self.cancelled: Callable[[], bool] = lambda: False

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        del on_line
        self.ran.append(command.script)
        word, _, name = command.script.partition(" ")
        if word in self.broken:
            raise self.broken[word]
        if word == "set":
            self.holds.add(name)
        elif word == "unset":
            self.holds.discard(name)
        names = [shlex.split(word)[0] for word in re.findall(r'begin %s\\n" (.+)$', command.script, re.MULTILINE)]
        read = [(one, self.texts.get(one, str(int(one in self.holds)))) for one in names]
        said = [f"@@lodger-fact k begin {one}\n{text}\n@@lodger-fact k end 0\n" for one, text in read]
        return Result(command, 0, "@@lodger-facts k\n" + "".join(said), "", 0.0)

    def forward(self, address: str, port: int) -> AbstractContextManager[int]:
        raise NotImplementedError

    def reconnect(self, patience: float = 0) -> None:
        raise NotImplementedError


class Named(State):
    """A state that holds once it was set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._fact = Fact(name, "", lambda text: text.strip() == "1")
        self.facts: tuple[Fact[Any], ...] = (self._fact,)

    def missing(self, read: Facts) -> str:
        return "" if read[self._fact] else "it does not hold"

    def act(self, read: Facts) -> list[Command]:
        del read
        return [Command(f"set {self.name}")]

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        del before, now
        return [Command(f"unset {self.name}")]


class Quiet:
    """A log and a report that nobody reads."""

    run = "run"

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return lambda *_args, **_fields: b""


def group(item: str, pool: str, *names: str) -> list[Step]:
    """Return the steps of one item, as a runbook is expanded: the last has the witness and gives the turn back."""
    *first, last = [Named(f"{name}({item})") for name in names]
    turns = (pool,) if pool else ()
    steps = [Step(state, item=item, turns=turns, line=1) for state in first]
    return [*steps, Step(last, "", ("test_worker.py",), item, turns, last_of_turn=bool(pool), line=1)]


class Walk:
    """One run of the loop over ``steps`` on a host where some of the states hold, with ``disagrees`` said by the witness."""

    def __init__(
        self, steps: list[Step], holds: Sequence[str] = (), disagrees: str = "", gates: PoolQueue | None = None, host: str = "h"
    ) -> None:
        self.asked: list[str] = []
        self.connection = Host(host, holds)
        self.engine = Runner(
            self.connection, Quiet(), Quiet(), self._witness, user="u", machine_id="m", gates=gates or PoolQueue(), poll=0.01
        )
        self._disagrees = disagrees
        plan = Plan("deploy", host, (), lambda *_: (steps, {}))
        self.run = _Progress(
            plan, steps, Facts({}), Ledger("r", "deploy", {}, "u", "{}"), RunResult(host, "deploy"), stale=True
        )

    def _witness(self, files: Sequence[str], transport: Transport, item: str) -> list[str]:
        del files, transport
        self.asked.append(item)
        return [self._disagrees] if self._disagrees else []

    def go(self) -> dict[str, Status]:
        self.engine._walk(self.run, Facts({}))
        return {outcome.name: outcome.mark for outcome in self.run.outcome.states}


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
    walk.engine.turns = turns = Told()
    walk.go()
    assert turns.told == told


def test_what_was_waited_for_is_read_again_before_anything_is_done() -> None:
    """Whoever had the turn may have done it: a worker that another run was draining is not put back in."""
    walk = Walk(group("a", "p", "ready", "joined"), [READY])

    class Meanwhile(Told):
        def take(self, pools: Sequence[str], waiting: Callable[[str], None]) -> None:
            super().take(pools, waiting)
            walk.connection.holds.add(JOINED)

    walk.engine.turns = Meanwhile()
    walk.go()
    assert "set joined(a)" not in walk.connection.ran


def test_a_run_whose_turn_was_taken_stops_before_its_next_command() -> None:
    walk = Walk(group("a", "p", "drained", "ready", "joined"))

    class Taken(Told):
        def check(self) -> None:
            if "set drained(a)" in walk.connection.ran:
                raise StateFailed("the turn in pool p was taken by somebody else")

    walk.engine.turns = Taken()
    with pytest.raises(StateFailed, match="was taken by somebody else"):
        walk.go()
    assert [script for script in walk.connection.ran if script.startswith("set ")] == ["set drained(a)"]


class Whole:
    """A run on a host that is as a twin was once, from its open lock to its end."""

    def __init__(
        self,
        steps: list[Step],
        turns: PoolLock | None = None,
        *,
        broken: Mapping[str, LodgerError] = MappingProxyType({}),
        holds: Sequence[str] = (),
        ledger: str = "",
        connection: Host | None = None,
    ) -> None:
        self.connection = connection or Host("h", holds)
        self.connection.broken.update(broken)
        self.connection.texts |= {name: text for name, (_, text) in captured("node1").sections.items()} | {"ledger": ledger}
        engine = Runner(self.connection, Quiet(), Quiet(), lambda *_: [], user="u", machine_id="m", turns=turns, poll=0.01)
        plan = Plan("deploy", "h", FIRST, lambda *_: (steps, {}))
        self.outcome = RunResult("h", "deploy")
        self.error: LodgerError | None = None
        try:
            engine._locked(plan, engine._read([facts.BUSY, facts.LEDGER, *FIRST]), self.outcome)
        except LodgerError as error:
            self.error = error

    @property
    def copies(self) -> list[str]:
        return [script for script in self.connection.ran if "lodger/journal/run.jsonl" in script]

    @property
    def acted(self) -> list[str]:
        return [script for script in self.connection.ran if script.startswith(("set ", "unset "))]


def test_what_a_run_did_whose_turn_was_taken_is_undone() -> None:
    class Taken(Told):
        def check(self) -> None:
            if "take p" in self.told:
                raise StateFailed("the turn in pool p was taken by somebody else")

    turns = Taken()
    run = Whole([*group("before", "", "ready"), *group("a", "p", "ready", "joined")], turns)
    assert run.acted == ["set ready(before)", "unset ready(before)"]
    assert run.outcome.error is not None
    assert run.outcome.error.what == "the turn in pool p was taken by somebody else"
    assert (run.outcome.mark, turns.told[-1]) == (Status.FAILED, "give back")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_turn_that_only_a_person_may_take_over_refuses_the_run_before_anything_is_done(resumed: bool) -> None:
    """And before anything that an earlier run began is undone."""

    class Silent(Told):
        def look(self, pools: Collection[str]) -> None:
            raise Refused(f"another run has its turn in pool {min(pools)}")

    before = captured("node1").dump()
    ledger = Ledger("earlier", "deploy", {}, "u", before, ("ready(before)",)).text() if resumed else ""
    run = Whole([*group("before", "", "ready"), *group("a", "p", "ready")], Silent(), ledger=ledger)
    assert isinstance(run.error, Refused)
    assert (run.error.what, run.acted) == ("another run has its turn in pool p", [])


def test_turns_are_looked_at_that_are_due() -> None:
    turns = Told()
    Whole([*group("a", "p", "ready", "joined"), *group("b", "q", "ready")], turns, holds=["ready(b)", "ready(a)"])
    assert turns.looked == ["p"]


class Booting(Host):
    """A host that loses its power while the first command of a state ``cut`` runs: that fails, and only then is the host gone."""

    def __init__(self) -> None:
        super().__init__("h", ())
        self.power, self.boots = True, 1

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        if not self.power:
            raise ConnectionLost("it is gone")
        if command.script == "set cut(a)" and self.boots == 1:
            self.power = False
            return Result(command, 1, "", "Connection reset by peer", 0.0)
        return super().run(command, on_line)

    def reconnect(self, patience: float = 0) -> None:
        del patience
        self.power, self.boots = True, self.boots + 1
        self.holds.clear()
        boot = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
        self.texts[facts.MACHINE.name] = boot.sub(
            f"{self.boots:08}-0000-0000-0000-000000000000", self.texts[facts.MACHINE.name]
        )


def test_a_command_that_fails_because_the_host_boots_is_begun_again_with_all_before_it() -> None:
    run = Whole(group("a", "", "ready", "cut"), connection=Booting())
    assert run.acted == ["set ready(a)", "set ready(a)", "set cut(a)"]
    assert (run.outcome.mark, run.outcome.error) == (Status.DONE, None)


def test_a_run_that_ends_leaves_a_copy_of_its_journal_and_no_ledger() -> None:
    run = Whole(group("a", "", "ready"))
    assert (run.outcome.mark, len(run.copies), f"rm -f {paths.LEDGER}" in run.copies[0]) == (Status.DONE, 1, True)


@pytest.mark.parametrize("kept", [{}, {"umask": ConnectionLost("it is gone")}])
@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({"joined": StateFailed("it does not join"), "unset": StateFailed("no way back")}, "the host could not be put back"),
        ({"joined": LockLost("the lock is eve's")}, "the lock is eve's"),
    ],
)
def test_a_run_that_leaves_a_host_half_done_leaves_its_journal_there_with_the_ledger(
    broken: dict[str, LodgerError], error: str, kept: dict[str, LodgerError]
) -> None:
    """Whoever ends it by hand looks for it there; that it cannot be written is not what they have to know."""

    class Broken(Named):
        def act(self, read: Facts) -> list[Command]:
            del read
            return [Command("joined")]

    run = Whole([*group("a", "", "ready"), Step(Broken("joined(a)"))], broken={**broken, **kept})
    assert run.error is not None
    assert run.error.what == error
    assert [f"rm -f {paths.LEDGER}" in script for script in run.copies] == [False]
    assert "umask 077" in run.copies[0]


class Failing(Host):
    """A host on which the command `joined` fails."""

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        done = super().run(command, on_line)
        return Result(command, 1, "", "it does not join", 0.0) if command.script == "joined" else done


class Crashing(Named):
    """A state whose command fails, and of which nothing comes up again that its undo starts."""

    def act(self, read: Facts) -> list[Command]:
        del read
        return [Command("joined")]

    def undone(self, before: Facts, now: Facts) -> str:
        del before, now
        return "it is not ready again"

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        del before
        return "the unit failed" if not now[self._fact] else ""

    def evidence(self, read: Facts) -> str:
        return "" if read[self._fact] else "ValueError: bad option"


def test_an_undo_that_waits_for_what_was_given_up_ends_at_once_with_the_reason_and_the_last_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lodger.run.runner._RESTART", 5.0)
    run = Whole([Step(Crashing("joined(a)"))], connection=Failing("h", []))
    assert run.error is not None
    assert run.error.cause.startswith("it is not ready again: the unit failed; the run had failed with: h: joined(a): ")
    assert (run.outcome.mark, run.outcome.exit_code) == (Status.UNDO_FAILED, 4)
    assert run.outcome.evidence == "ValueError: bad option"


def test_an_undo_that_fails_and_shows_nothing_leaves_what_was_seen_of_the_first_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mute(Crashing):
        def act(self, read: Facts) -> list[Command]:
            return Named.act(self, read)

        def evidence(self, read: Facts) -> str:
            del read
            return ""

    monkeypatch.setattr("lodger.run.runner._RESTART", 5.0)
    last = Crashing("joined(a)")
    monkeypatch.setattr(last, "undone", lambda *_: "")
    run = Whole([Step(Mute("ready(a)")), Step(last)], connection=Failing("h", []))
    assert (run.outcome.mark, run.outcome.evidence) == (Status.UNDO_FAILED, "ValueError: bad option")


def test_a_run_that_began_nothing_leaves_nothing() -> None:
    class Refusing(Named):
        def blockers(self, read: Facts) -> list[Blocker]:
            del read
            return [Blocker("it cannot be")]

    run = Whole([Step(Refusing("ready(a)"))])
    assert isinstance(run.error, Refused)
    assert (run.acted, run.copies) == ([], [])


def test_two_hosts_that_take_turns_in_two_pools_the_other_way_round_both_come_to_an_end() -> None:
    """Each gives its turn back after a group, whatever became of the group's last state."""
    gates, both_inside = PoolQueue(), threading.Barrier(2, timeout=5)
    failed: list[BaseException] = []

    def steps(first: str, second: str) -> list[Step]:
        class Meets(Named):
            def act(self, read: Facts) -> list[Command]:
                both_inside.wait()
                return super().act(read)

        found = [*group("a", first, "ready", "joined"), *group("b", second, "ready", "joined")]
        return [Step(Meets("ready(a)"), item="a", turns=(first,), line=1), *found[1:]]

    def go(host: str, first: str, second: str) -> None:
        walk = Walk(steps(first, second), ["joined(a)", "joined(b)"], gates=gates, host=host)
        end = threading.Timer(5, lambda: setattr(walk.connection, "cancelled", lambda: True))
        end.start()
        try:
            walk.go()
        except (LodgerError, KeyboardInterrupt) as error:
            failed.append(error)
        finally:
            end.cancel()

    threads = [threading.Thread(target=go, args=one) for one in (("h1", "one", "two"), ("h2", "two", "one"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failed == []
