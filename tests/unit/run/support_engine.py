"""What the tests of run share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from lodger.errors import LodgerError
from lodger.host import facts
from lodger.host.command import Command, Result, Transport
from lodger.host.facts.base import Fact, Facts
from lodger.locks.pool_lock import PoolLock
from lodger.locks.process_queue import PoolQueue
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult, Status
from lodger.run.plan import Plan
from lodger.run.progress import Progress
from lodger.run.runner import Runner
from lodger.run.session import Opened, Session
from lodger.states.base import State, Step
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

    def reconnect(self) -> None:
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
    """Return the steps of one item, as a runbook is expanded: the last has the witness and frees the pool."""
    *first, last = [Named(f"{name}({item})") for name in names]
    pools = (pool,) if pool else ()
    steps = [Step(state, item=item, pools=pools, line=1) for state in first]
    return [*steps, Step(last, "", ("test_worker.py",), item, pools, frees_pools=bool(pool), line=1)]


class Walk:
    """One run of the loop over ``steps`` on a host where some of the states hold, with ``disagrees`` said by the witness."""

    def __init__(
        self, steps: list[Step], holds: Sequence[str] = (), disagrees: str = "", queue: PoolQueue | None = None, host: str = "h"
    ) -> None:
        self.asked: list[str] = []
        self.connection = Host(host, holds)
        self.session = Session(
            self.connection, Quiet(), Quiet(), user="u", machine_id="m", queue=queue or PoolQueue(), poll=0.01
        )
        self.runner = Runner(self.session, self._witness)
        self._disagrees = disagrees
        ledger = Ledger("r", "deploy", {}, "u", "{}")
        self.run = Progress(Plan("deploy", host, steps), Facts({}), ledger, RunResult(host, "deploy"), stale=True)

    def _witness(self, files: Sequence[str], transport: Transport, item: str) -> list[str]:
        del files, transport
        self.asked.append(item)
        return [self._disagrees] if self._disagrees else []

    def go(self) -> dict[str, Status]:
        self.runner._walk(self.run, Facts({}))
        return {state.name: state.status for state in self.run.result.states}


class Whole:
    """A run on a host that is as a twin was once, from its open lock to its end."""

    def __init__(
        self,
        steps: list[Step],
        pool_lock: PoolLock | None = None,
        *,
        broken: Mapping[str, LodgerError] = MappingProxyType({}),
        holds: Sequence[str] = (),
        ledger: str = "",
        connection: Host | None = None,
    ) -> None:
        self.connection = connection or Host("h", holds)
        self.connection.broken.update(broken)
        self.connection.texts |= {name: text for name, (_, text) in captured("node1").sections.items()} | {"ledger": ledger}
        session = Session(self.connection, Quiet(), Quiet(), user="u", machine_id="m", pool_lock=pool_lock, poll=0.01)
        plan = Plan("deploy", "h", steps, FIRST)
        self.outcome = RunResult("h", "deploy")
        self.error: LodgerError | None = None
        read = session.read([facts.LEDGER, *FIRST])
        try:
            opened = Opened(read, Ledger.load(read[facts.LEDGER], "deploy"))
            Runner(session, lambda *_: []).carry_out(plan, opened, self.outcome)
        except LodgerError as error:
            self.error = error

    @property
    def copies(self) -> list[str]:
        return [script for script in self.connection.ran if "lodger/journal/run.jsonl" in script]

    @property
    def acted(self) -> list[str]:
        return [script for script in self.connection.ran if script.startswith(("set ", "unset "))]
