"""The loop: whose turn it is, and when a witness is asked. The host is a table of readings that commands change."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

from lodger.errors import ConnectionLost, LockLost, LodgerError, Refused, StateFailed
from lodger.host import facts, paths
from lodger.host.command import Command, Result
from lodger.host.facts.base import Facts
from lodger.locks.process_queue import PoolQueue
from lodger.run.outcome import Status
from lodger.states.base import Blocker, Step
from tests.unit.run.support_engine import Host, Named, Walk, Whole, group


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

    def reconnect(self) -> None:
        self.power, self.boots = True, self.boots + 1
        self.holds.clear()
        boot = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
        self.texts[facts.MACHINE.name] = boot.sub(
            f"{self.boots:08}-0000-0000-0000-000000000000", self.texts[facts.MACHINE.name]
        )


def test_a_command_that_fails_because_the_host_boots_is_begun_again_with_all_before_it() -> None:
    run = Whole(group("a", "", "ready", "cut"), connection=Booting())
    assert run.acted == ["set ready(a)", "set ready(a)", "set cut(a)"]
    assert (run.outcome.status, run.outcome.error) == (Status.DONE, None)


def test_a_run_that_ends_leaves_a_copy_of_its_journal_and_no_ledger() -> None:
    run = Whole(group("a", "", "ready"))
    assert (run.outcome.status, len(run.copies), f"rm -f {paths.LEDGER}" in run.copies[0]) == (Status.DONE, 1, True)


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
    monkeypatch.setattr("lodger.run.undo._RESTART", 5.0)
    run = Whole([Step(Crashing("joined(a)"))], connection=Failing("h", []))
    assert run.error is not None
    assert run.error.cause.startswith("it is not ready again: the unit failed; the run had failed with: h: joined(a): ")
    assert (run.outcome.status, run.outcome.exit_code) == (Status.UNDO_FAILED, 4)
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

    monkeypatch.setattr("lodger.run.undo._RESTART", 5.0)
    last = Crashing("joined(a)")
    monkeypatch.setattr(last, "undone", lambda *_: "")
    run = Whole([Step(Mute("ready(a)")), Step(last)], connection=Failing("h", []))
    assert (run.outcome.status, run.outcome.evidence) == (Status.UNDO_FAILED, "ValueError: bad option")


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
    queue, both_inside = PoolQueue(), threading.Barrier(2, timeout=5)
    failed: list[BaseException] = []

    def steps(first: str, second: str) -> list[Step]:
        class Meets(Named):
            def act(self, read: Facts) -> list[Command]:
                both_inside.wait()
                return super().act(read)

        found = [*group("a", first, "ready", "joined"), *group("b", second, "ready", "joined")]
        return [Step(Meets("ready(a)"), item="a", pools=(first,), line=1), *found[1:]]

    def go(host: str, first: str, second: str) -> None:
        walk = Walk(steps(first, second), ["joined(a)", "joined(b)"], queue=queue, host=host)
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
