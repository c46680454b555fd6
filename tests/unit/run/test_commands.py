"""What the engine does with a command that fails, over a connection to this machine's own shell."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from lodger.errors import StateFailed
from lodger.host import facts
from lodger.host.command import Command, Result, run
from lodger.host.facts.base import Fact, Facts
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult, StateResult
from lodger.run.plan import Plan
from lodger.run.progress import Progress
from lodger.run.runner import Runner
from lodger.run.session import Session
from lodger.states.base import State, Step

HOLDER = Fact("holder", "echo pid 7", str.strip)


class Shell:
    """A connection to nowhere: scripts run here."""

    host = "here"
    round_trips = 0

    def __init__(self) -> None:
        self.cancelled: Callable[[], bool] = lambda: False

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        del on_line
        done = subprocess.run(["sh", "-c", command.script], capture_output=True, text=True, check=False)
        return Result(command, done.returncode, done.stdout, done.stderr, 0.0)

    def forward(self, address: str, port: int) -> Any:
        raise NotImplementedError

    def reconnect(self) -> None:
        raise NotImplementedError


class Written:
    """A journal that remembers the events of a kind."""

    run = "a run"

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def write(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def intent(self, state: str, command: object) -> None:
        self.write("command", state=state, command=str(command))

    def result(self, state: str, result: Result) -> None:
        self.write("result", state=state, code=result.code)

    def content(self) -> bytes:
        return b""


class Silent:
    def progress(self, host: str, text: str) -> None: ...
    def state(self, host: str, result: StateResult) -> None: ...
    def note(self, host: str, text: str) -> None: ...


class Held(State):
    """A state whose command fails, and which knows who is to blame."""

    name = "held"
    facts = (HOLDER,)

    def missing(self, read: Facts) -> str:
        del read
        return "it is held"

    def evidence(self, read: Facts) -> str:
        return f"held by {read[HOLDER]}"


class Unreadable(Held):
    facts = (Fact("holder", "exit 1", str),)


@pytest.mark.parametrize(("state", "seen"), [(Held(), "held by pid 7"), (Unreadable(), "")])
def test_a_command_that_fails_shows_what_its_state_knows_of_the_cause(state: State, seen: str) -> None:
    log = Written()
    runner = Runner(Session(Shell(), log, Silent(), user="me", machine_id=None), lambda *_: [])
    plan = Plan("any", "here", [Step(state)], (facts.MACHINE,))
    ledger = Ledger("a run", "any", {}, "me", "")
    progress = Progress(plan, Facts({}), ledger, RunResult("here", "any"))
    with pytest.raises(StateFailed, match="could not let go"):
        runner._perform(progress, state, run("false", why="let go"))
    assert progress.result.evidence == seen
    assert [fields for event, fields in log.events if event == "evidence"] == (
        [{"state": "held", "lines": [seen]}] if seen else []
    )
