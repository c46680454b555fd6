"""The only loop: lock, ledger, footprint, preconditions, states, undo, witnesses, journal.

It decides from facts, which are read again after everything that may have changed them, and never from an exit code
that was lost with a connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from lodger.errors import (
    CommandFailed,
    ConnectionFailed,
    ConnectionLost,
    LockLost,
    LodgerError,
    Refused,
    StateFailed,
    UndoFailed,
)
from lodger.host import facts, paths
from lodger.host.command import Command, Result, Transport, quote
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner, names
from lodger.locks import host_lock
from lodger.locks.pool_lock import PoolLock
from lodger.locks.process_queue import PoolQueue
from lodger.run import footprint
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.states.base import Blocker, Check, NoUndo, State, Step

T = TypeVar("T")

_POLL = 2.0  # seconds between two readings while a state comes true
_RESTART = 60.0  # seconds that a daemon of the host may take to come back while something is undone
_SETTLE = 3900.0  # seconds that a command may still take which nobody waits for any more (the install of a driver has 3600)
_ATTEMPTS = 3  # how often a state is acted on again after a lost connection
_BOOTS = 3  # how often the states are gone through when the host boots in mid run


@dataclass(frozen=True)
class Plan:
    """What a run is to establish on one host.

    ``first`` are the facts that ``build`` needs; ``build(read, ledger)`` returns the steps, ``params`` what a later run
    needs to know to resume this one; ``remarks(read)`` are lines that whoever reads the report has to know. For a dry run,
    ``difference(read)`` shows what files would change, ``document(said)`` the runbook with lines after its blocks.
    """

    runbook: str
    host: str
    first: tuple[Fact[Any], ...]
    build: Callable[[Facts, Ledger | None], tuple[list[Step], Mapping[str, Any]]]
    difference: Callable[[Facts], str | None] = lambda _: None
    remarks: Callable[[Facts], Sequence[str]] = lambda _: ()
    document: Callable[[Mapping[int, Sequence[str]]], str] | None = None


class Connection(Transport, Protocol):
    """A transport that can be opened again."""

    round_trips: int
    cancelled: Callable[[], bool]

    def run(self, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
        """Run ``command``; see Transport."""
        ...

    def reconnect(self, patience: float = ...) -> None:
        """Connect again."""
        ...


class RunLog(Protocol):
    """Where a run is written down (``journal.Journal``)."""

    run: str

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; it is on disk when this returns."""
        ...

    def intent(self, state: str, command: object) -> None:
        """Append what is about to be done."""
        ...

    def result(self, state: str, result: Result) -> None:
        """Append how a command ended."""
        ...

    def content(self) -> bytes:
        """Return everything so far."""
        ...


class Reporter(Protocol):
    """Who tells the operator while the run goes on."""

    def progress(self, host: str, text: str) -> None:
        """Show where the run is; the next call replaces it."""
        ...

    def state(self, host: str, outcome: StateResult) -> None:
        """Show what became of a state."""
        ...

    def note(self, host: str, text: str) -> None:
        """Show a line that stays."""
        ...


Witnesses = Callable[[Sequence[str], Transport, str], list[str]]
"""Runs testinfra files over the open connection and returns what disagrees, one line each.

The last argument names the service or neighbour to look at, "" for all of the host."""


class Runner:
    """Establishes the states of one plan on one host."""

    def __init__(
        self,
        connection: Connection,
        log: RunLog,
        report: Reporter,
        witnesses: Witnesses,
        *,
        user: str,
        machine_id: str | None,
        break_lock: bool = False,
        gates: PoolQueue | None = None,
        turns: PoolLock | None = None,
        poll: float = _POLL,
    ) -> None:
        self.connection, self.log, self.report, self.witnesses = connection, log, report, witnesses
        self.user, self.machine_id, self.break_lock, self.poll = user, machine_id, break_lock, poll
        self.gates = gates or PoolQueue()
        self.me = host_lock.me(user, log.run)
        self.turns = turns
        self._lock_lost = threading.Event()
        self._boot = ""  # the host's, as it was when this run last connected

    # ------------------------------------------------------------ one run

    def run(self, plan: Plan) -> RunResult:
        """Establish ``plan``; never raises for what happens on the host, the outcome tells."""
        start = time.monotonic()
        outcome = RunResult(plan.host, plan.runbook, journal=self.log.run)
        try:
            self._run(plan, outcome)
        except Exception as raised:  # noqa: BLE001  every outcome is reported as one, a mistake of ours too
            error = self._failure(raised)
            error.host = error.host or plan.host
            outcome.error = error
            if outcome.mark not in {Status.FAILED, Status.UNDO_FAILED}:
                outcome.mark = Status.of(error)
        except KeyboardInterrupt:
            outcome.error = StateFailed("the run was interrupted before it began", host=plan.host)
            outcome.mark = Status.FAILED
        outcome.round_trips = self.connection.round_trips
        outcome.seconds = time.monotonic() - start
        self.log.write("end", outcome=str(outcome.mark), error=str(outcome.error or ""), changed=outcome.changed)
        return outcome

    def look(self, plan: Plan) -> tuple[Facts, list[Step]]:
        """Read the facts of ``plan`` and return them with its steps; nothing is changed, no lock is taken."""
        read = self._read([facts.MACHINE, facts.LEDGER, *plan.first])
        self._identify(read)
        return self._build(plan, read, Ledger.load(read[facts.LEDGER], plan.runbook))[:2]

    def refuse_early(self, steps: Sequence[Step], read: Facts) -> None:
        """Raise Refused for everything that can be known to fail before the first change."""
        self._refuse_early(steps, read, RunResult(self.connection.host, ""))

    def _run(self, plan: Plan, outcome: RunResult) -> None:
        read = self._open(plan)
        finished = False
        try:
            with self._renewing():
                self._locked(plan, read, outcome)
            finished = True
        finally:
            if not finished or outcome.mark is not Status.SATISFIED or outcome.losses:
                self._release()

    def _locked(self, plan: Plan, read: Facts, outcome: RunResult) -> None:
        if read[facts.BUSY]:
            self._settle()
            read = self._fresh([facts.MACHINE, facts.LEDGER, *plan.first])
        ledger = Ledger.load(read[facts.LEDGER], plan.runbook)
        read, steps, params = self._build(plan, read, ledger)
        # What the earlier run did not look at, it did not touch: a run of another plan may ask for more.
        before = Facts.load(ledger.before, plan.host).over(read) if ledger is not None else read
        outcome.remarks = remarks(plan, steps, read)
        for remark in outcome.remarks:
            self.report.note(plan.host, remark)
        if ledger is not None:
            self.report.note(plan.host, f"run {ledger.run} did not finish; going on from where it was")
        self.log.write("facts", moment="before", facts=_digest(read), ledger=ledger.run if ledger else None)
        if ledger is None and all(not step.state.missing(read) for step in steps):
            self._nothing_to_do(plan, steps, outcome)
            return
        if ledger is None:
            self._refuse_early(steps, read, outcome)
        self._refuse_silent_turns(steps, read)
        own = Ledger(self.log.run, plan.runbook, params, self.user, before.dump())
        if ledger is not None:
            own = dataclasses.replace(own, acted=ledger.acted, stops=ledger.stops)
        run = _Progress(plan, steps, before, own, outcome, begun=ledger is not None)
        try:
            self._carry_out(run, read)
        except Exception:
            self._leave_copy(run)
            raise

    def _carry_out(self, run: _Progress, read: Facts) -> None:
        """Establish the states, or undo what was done; raise what leaves the ledger on the host as it is."""
        outcome, host = run.outcome, run.plan.host
        try:
            if run.begun:  # what an earlier run began is put back when going on is refused
                self._refuse_early(run.steps, read, outcome)
            self._establish_all(run, read)
        except LockLost:
            self.gates.fail(host)
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  a mistake of ours must not leave a host half done
            outcome.error = self._failure(error)
            outcome.error.host = host
            outcome.mark = Status.REFUSED if isinstance(error, Refused) and not run.begun else Status.FAILED
            self.gates.fail(host)
            self._no_more_stopping()
            self._undo_all(run)
        finally:
            self._leave_turn()
        self._no_more_stopping()
        self._close(run)

    def _failure(self, error: BaseException) -> LodgerError:
        """Return ``error`` as a failure to report; of a mistake of ours the journal keeps where it was made."""
        if isinstance(error, LodgerError):
            return error
        if isinstance(error, KeyboardInterrupt):
            return StateFailed("the run was interrupted", cause="Ctrl-C or SIGTERM")
        self.log.write("internal error", traceback="".join(traceback.format_exception(error))[-4000:])
        hint = f"report it, with the traceback in the journal: ./ops journal --show {self.log.run}"
        return StateFailed("this is a mistake in Lodger", cause=f"{type(error).__name__}: {error}", hint=hint)

    def _no_more_stopping(self) -> None:
        """From here on the run is being finished or undone: a Ctrl-C that came, or comes, cuts nothing off."""
        self.connection.cancelled = lambda: False

    def _establish_all(self, run: _Progress, read: Facts) -> None:
        """Go through the states; once more from the first when the host has booted meanwhile."""
        for _ in range(_BOOTS):
            run.boot = self._boot
            try:
                self._walk(run, read)
            except _Booted:
                self.log.write("booted", boot=self._boot)
                self.report.note(run.plan.host, "the host has booted meanwhile; beginning again with the first state")
                run.outcome.states.clear()
                run.outcome.changed.clear()
                read = self._reread(run)
            else:
                run.outcome.mark = Status.DONE
                return
        raise StateFailed(f"the host booted {_BOOTS} times in this run", hint="find out why, then run this again")

    def _walk(self, run: _Progress, read: Facts) -> None:
        for step in run.steps:
            start = time.monotonic()
            state = step.state
            self._stop_if_asked()
            self._same_boot(run, state)
            if run.stale:
                read = self._fresh(state.facts)
            missing = state.missing(read)
            acts = bool(missing) or state.name in run.ledger.acted
            if acts:
                run.worked.add(step.group)
            if missing:
                try:
                    if self._take_turn(step):
                        run.stale = True  # others changed the pool meanwhile
                        read = self._fresh(state.facts)
                        missing = state.missing(read)
                    if missing:
                        self._establish(run, step, read, missing)
                except (LodgerError, KeyboardInterrupt):
                    self._mark(run.outcome, StateResult(state.name, Status.FAILED, time.monotonic() - start))
                    raise
            if step.group in run.worked:  # whatever became of the last state itself
                self._witness(run, step)
            if acts:
                self._mark(run.outcome, StateResult(state.name, Status.DONE, time.monotonic() - start, missing))
                run.outcome.changed.append(state.name)
            else:
                self._mark(run.outcome, StateResult(state.name, Status.SATISFIED))
            if step.last_of_turn:
                self._leave_turn()

    def _same_boot(self, run: _Progress, state: State) -> None:
        """Raise _Booted when what earlier states established may be gone with a boot that nobody asked for."""
        if state.reboots:
            run.boot = self._boot
        elif run.boot != self._boot:
            raise _Booted

    def _take_turn(self, step: Step) -> bool:
        """Wait until nobody else restarts something of the same pool; return whether that took a while."""
        waited = False

        def waiting(other: str) -> None:
            nonlocal waited
            waited = True
            self._stop_if_asked()
            self.report.progress(self.connection.host, f"{step.state.name}: waiting for {other}")

        for pool in step.turns:
            self.gates.enter(pool, self.connection.host, waiting)
        if step.turns and (turns := self.turns) is not None:
            self._patiently(lambda: turns.take(step.turns, waiting))
        return waited

    def _leave_turn(self) -> None:
        if self.turns is not None:
            self.turns.give_back()
        self.gates.leave(self.connection.host)

    # ------------------------------------------------------------ opening and closing

    def _open(self, plan: Plan) -> Facts:
        """Check that this is the machine, take the lock, and read everything, in one round trip."""
        wanted: list[Fact[Any]] = [facts.MACHINE, host_lock.attempt(self.me), facts.BUSY, facts.LEDGER, *plan.first]
        # On any other machine, or one that nobody named, nothing is written, not even the lock.
        only_look = f"{facts.script([facts.MACHINE])}\nexit 0"
        guard = f'if [ "$(cat /etc/machine-id)" != {quote([self.machine_id or "unknown"])} ]; then\n{only_look}\nfi\n'
        command = facts.command(wanted)
        command = dataclasses.replace(command, script=guard + command.script)
        read = facts.parse(self.connection.run(command).check(plan.host).stdout, plan.host)
        self._identify(read)
        self._boot = read[facts.MACHINE].boot_id
        held = read[host_lock.attempt(self.me)]
        if not held.taken:
            self._contend(held, read, plan)
        return read

    def _identify(self, read: Facts) -> None:
        found = read[facts.MACHINE].machine_id
        if self.machine_id is None:
            hint = f'if this is the right machine, write `machine_id: "{found}"` into its host file'
            raise Refused("the identity of this machine is not recorded", cause=f"its machine-id is {found}", hint=hint)
        if found != self.machine_id:
            cause = f"its machine-id is {found}, the inventory says {self.machine_id}"
            raise Refused(
                "this is the wrong machine", cause=cause, hint="check `address:`, or `machine_id:` after a reinstallation"
            )

    def _contend(self, held: host_lock.Attempt, read: Facts, plan: Plan) -> None:
        """Take the lock over where the rules allow it, else raise Refused."""
        if held.failure:
            # A full or read-only disk says it better through the state that looks at it.
            _, steps, _ = self._build(plan, read, None)
            found = [blocker for step in steps for blocker in step.state.blockers(read) if not blocker.awaits]
            if found:
                raise _refusal(found)
            raise Refused("the lock cannot be taken", cause=held.failure, hint=f"look at {paths.VAR} on the host")
        verdict = host_lock.judge(held, self.me, host_lock.process_start(held.owner.pid) if held.owner else 0)
        if verdict is host_lock.Verdict.LIVE or (verdict is host_lock.Verdict.EXPIRED and not self.break_lock):
            hint = (
                "wait for it"
                if verdict is host_lock.Verdict.LIVE
                else "its owner is silent for longer than it may be; --break-lock takes over"
            )
            who = str(held.owner) if held.owner else "somebody who wrote no name"
            raise Refused("another run holds this host", cause=f"{who}, last renewed {held.age:.0f} s ago", hint=hint)
        self.log.write("lock", verdict=str(verdict.value), held=held.text)
        self.report.note(self.connection.host, f"taking over the lock of {held.owner} ({verdict.value})")
        if self.connection.run(host_lock.take_over(held, self.me)).code != 0:
            raise Refused("another run took the lock over first", hint="wait for it")

    @contextlib.contextmanager
    def _renewing(self) -> Iterator[None]:
        """Renew the lock while the block runs."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(host_lock.RENEWAL):
                with contextlib.suppress(LodgerError, KeyboardInterrupt):  # the main thread meets the same connection
                    if self.connection.run(host_lock.renew(self.me)).code == 1:
                        self._lock_lost.set()
                        return

        thread = threading.Thread(target=renew, name=f"lock-{self.connection.host}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def _release(self) -> None:
        """Give the lock back; over a dead connection it expires by itself."""
        self._no_more_stopping()
        with contextlib.suppress(ConnectionFailed, CommandFailed):
            self.connection.run(Command(host_lock.release_script(self.me), why="unlock"))

    def _nothing_to_do(self, plan: Plan, steps: Sequence[Step], outcome: RunResult) -> None:
        """Finish a run that found every state satisfied: nothing was done, so there is nothing to compare."""
        self.connection.run(Command(host_lock.release_script(self.me), why="unlock")).check(plan.host)
        for step in steps:
            self._mark(outcome, StateResult(step.state.name, Status.SATISFIED))

    def _close(self, run: _Progress) -> None:
        """Compare the footprint with the one before, put the journal on the host, and end the ledger."""
        now = self._reread(run)
        touched = frozenset(owner for step in run.steps for owner in step.state.touched(run.before) | step.state.touched(now))
        self._compare(run.before, now, touched, run.outcome)
        if run.outcome.losses:
            names = ", ".join(f"{change.kind} {change.name}" for change in run.outcome.losses)
            self.log.write("losses", losses=[str(change) for change in run.outcome.losses])
            if run.outcome.error is None:
                run.outcome.error = StateFailed(
                    f"something foreign was lost or changed: {names}", hint="find out who did it, this run or its owner"
                )
        if not run.begun:
            return
        # What an earlier run began with other states is undone by none of this run's: the ledger goes on naming it.
        if run.outcome.mark is Status.FAILED and not run.knows(run.ledger.acted):
            back = run.before[facts.DEPLOYED].standing == now[facts.DEPLOYED].standing
            run.outcome.unfinished = bool(run.outcome.losses) or not back
        leave = self._copy(ends_ledger=not run.outcome.unfinished)
        self._patiently(lambda: self.connection.run(leave).check(run.plan.host))

    def _copy(self, *, ends_ledger: bool) -> Command:
        """Return what puts a copy of the journal on the host, and may end the ledger."""
        end = f" && rm -f {paths.LEDGER}" if ends_ledger else ""
        folder, copy = f"{paths.VAR}/journal", quote([f"{paths.VAR}/journal/{self.log.run}.jsonl"])
        script = f"umask 077 && mkdir -p {folder} && chmod 700 {folder} && cat > {copy}{end} && sync -f {paths.VAR}"
        why = "leave the journal, end the ledger" if ends_ledger else "leave the journal"
        return Command(script, why=why, stdin=self.log.content())

    def _leave_copy(self, run: _Progress) -> None:
        """Leave a copy for whoever has to put the host back by hand; that this fails must not hide why it is left to them."""
        if run.begun:
            self._no_more_stopping()
            with contextlib.suppress(LodgerError):
                self.connection.run(self._copy(ends_ledger=False))

    def _compare(self, before: Facts, after: Facts, touched: frozenset[Owner], outcome: RunResult) -> None:
        rebooted = before[facts.MACHINE].boot_id != after[facts.MACHINE].boot_id
        changes = footprint.difference(
            footprint.of(before, outcome.host, rebooted=rebooted),
            footprint.of(after, outcome.host, rebooted=rebooted),
            lambda owner: bool(names(owner, after) & touched),
        )
        outcome.losses = [change for change in changes if change.loss]
        outcome.news = [change for change in changes if not change.loss]

    # ------------------------------------------------------------ reading

    def _read(self, wanted: Sequence[Fact[Any]]) -> Facts:
        result = self.connection.run(facts.command(wanted)).check(self.connection.host)
        return facts.parse(result.stdout, self.connection.host)

    def _reread(self, run: _Progress) -> Facts:
        states = [step.state for step in run.steps]
        return self._fresh([*run.plan.first, *(fact for state in states for fact in (*state.facts, *state.undo_facts))])

    def _fresh(self, wanted: Sequence[Fact[Any]]) -> Facts:
        return self._patiently(lambda: self._read(wanted))

    def _reconnect(self) -> None:
        """Connect again, and let what the lost connection left running come to its end: only then are facts facts."""
        self.connection.reconnect()
        self._settle()

    def _settle(self) -> None:
        """Wait until no command of a lost connection, or of a run that died, is at work on the host."""
        end = time.monotonic() + _SETTLE
        while True:
            read = self._read([facts.BUSY, facts.MACHINE])
            busy, self._boot = read[facts.BUSY], read[facts.MACHINE].boot_id
            if not busy:
                return
            if time.monotonic() > end:
                raise StateFailed(
                    "a command that was begun before does not end",
                    cause=busy[0].strip()[:160],
                    hint="look at it on the host; end it if it hangs, then run this again",
                )
            self.report.progress(self.connection.host, f"an earlier command is still at work: {busy[0].strip()[:80]}")
            time.sleep(self.poll)

    def _patiently(self, action: Callable[[], T]) -> T:
        """Return what ``action`` reads, connecting again where the connection was lost."""
        for _ in range(_ATTEMPTS):
            try:
                return action()
            except ConnectionLost as error:
                self.log.write("connection lost", cause=str(error))
                self.report.note(self.connection.host, "the connection was lost; connecting again")
                self._reconnect()
        return action()

    def _build(self, plan: Plan, read: Facts, ledger: Ledger | None) -> tuple[Facts, list[Step], Mapping[str, Any]]:
        """Return the steps of ``plan`` and facts that hold all they ask for."""
        steps, params = plan.build(read, ledger)
        wanted = [fact for step in steps for fact in (*step.state.facts, *step.state.undo_facts)]
        if any(fact not in read for fact in wanted):
            read = self._read([facts.MACHINE, facts.LEDGER, *plan.first, *wanted])
        return read, steps, params

    # ------------------------------------------------------------ acting

    def _refuse_early(self, steps: Sequence[Step], read: Facts, outcome: RunResult) -> None:
        """Raise Refused for everything that can be known to fail before the first change."""
        provided: set[str] = set()
        found: list[Blocker] = []
        for step in steps:
            state = step.state
            if not state.missing(read):
                provided |= state.provides
                continue
            mine = [blocker for blocker in state.blockers(read) if not blocker.awaits or blocker.awaits not in provided]
            if mine:
                outcome.states.append(StateResult(state.name, Status.REFUSED, detail=mine[0].what))
                found += mine
            provided |= state.provides
        if found:
            raise _refusal(found)

    def _refuse_silent_turns(self, steps: Sequence[Step], read: Facts) -> None:
        """Raise Refused for a turn that the run could not take; what an earlier run began stays begun for it."""
        due = {pool for step in steps if step.turns and step.state.missing(read) for pool in step.turns}
        if (turns := self.turns) is not None:
            self._patiently(lambda: turns.look(due))

    def _establish(self, run: _Progress, step: Step, read: Facts, missing: str) -> None:
        state = step.state
        self.report.progress(run.plan.host, f"{state.name}: {missing}")
        for blocker in state.blockers(read):
            kind = StateFailed if run.begun else Refused
            raise kind(blocker.what, cause=blocker.cause, hint=blocker.hint, state=state.name)
        if state.only_waits and not run.begun:
            self._wait_first(run, state)
            return
        self._note_intent(run, state, read, missing)
        for attempt in range(_ATTEMPTS):
            try:
                for action in state.act(read):
                    self._stop_if_asked()
                    self._same_boot(run, state)
                    self._perform(run, state, action)
                break
            except ConnectionLost as error:
                self.log.write("connection lost", state=state.name, cause=str(error))
                self.report.note(run.plan.host, f"the connection was lost during {state.name}; connecting again")
                self._reconnect()
                read = self._fresh(state.facts)
                if not state.missing(read):
                    break
                if attempt == _ATTEMPTS - 1:
                    raise
        run.stale = True
        self._await(run, state)

    def _wait_first(self, run: _Progress, state: State) -> None:
        """Wait for ``state`` before anything was begun: past its deadline there is nothing to undo, and it is a refusal."""
        run.stale = True
        try:
            self._await(run, state)
        except StateFailed as error:
            raise Refused(error.what, cause=error.cause, hint="nothing was changed; try later", state=state.name) from error
        run.before = self._reread(run)  # whose service ended while we only waited has lost nothing to us
        run.ledger = dataclasses.replace(run.ledger, before=run.before.dump())

    def _note_intent(self, run: _Progress, state: State, read: Facts, missing: str) -> None:
        """Write the ledger on the host before the first effect of ``state``."""
        old = run.ledger
        acted, stops = dict.fromkeys((*old.acted, state.name)), dict.fromkeys((*old.stops, *state.stops(read)))
        run.ledger = dataclasses.replace(old, acted=tuple(acted), stops=tuple(stops))
        self.log.write("intent", state=state.name, missing=missing, stops=state.stops(read))
        self._patiently(lambda: self._write_ledger(run.ledger))
        run.begun = True

    def _write_ledger(self, ledger: Ledger) -> Facts:
        self.connection.run(paths.write(paths.LEDGER, ledger.text(), why="write the ledger", mode="0600")).check(
            self.connection.host
        )
        return Facts({})

    def _perform(self, run: _Progress, state: State, action: Command | Check) -> None:
        self.log.intent(state.name, action)
        run.stale = True
        if isinstance(action, Check):
            try:
                said = action.run(self.connection, lambda text: self.report.progress(run.plan.host, f"{state.name}: {text}"))
            except LodgerError as error:
                self.log.write("check", state=state.name, passed=False, said=str(error))
                self._keep_evidence(run, state)
                self._same_boot(run, state)
                raise
            self.log.write("check", state=state.name, passed=True, said=said)
            self.report.note(run.plan.host, said)
            return
        result = self.connection.run(action, lambda line: self.report.progress(run.plan.host, f"{state.name}: {line}"))
        self.log.result(state.name, result)
        if not result.ok:
            lines = [line for line in (result.stderr.strip() or result.stdout.strip()).splitlines() if line.strip()]
            cause = "; ".join(lines[-2:]) if lines else f"exit code {result.code}, nothing printed"
            self._keep_evidence(run, state)
            self._same_boot(run, state)  # a command that a boot cuts off may fail before the connection does
            raise StateFailed(f"could not {action.why}" if action.why else f"`{action}` failed", cause=cause, state=state.name)

    def _keep_evidence(self, run: _Progress, state: State, also: Sequence[Fact[Any]] = ()) -> None:
        """Keep what an operator should see of a state that failed; that it cannot be read must not hide the failure."""
        with contextlib.suppress(LodgerError):
            if found := state.evidence(self._fresh([*state.facts, *also])):
                run.outcome.evidence = found
                self.log.write("evidence", state=state.name, lines=found.splitlines()[-40:])

    def _await(self, run: _Progress, state: State) -> None:
        """Read until ``state`` holds; raise StateFailed when it cannot any more, or its deadline has passed."""
        end = time.monotonic() + state.deadline
        while True:
            read = self._fresh(state.facts)
            self._same_boot(run, state)
            missing = state.missing(read)
            if not missing:
                return
            hopeless = state.hopeless(read)
            late = time.monotonic() > end
            if hopeless or late:
                self._keep_evidence(run, state)
                raise StateFailed(
                    hopeless or f"after {state.deadline:.0f} s: {missing}" if state.deadline else hopeless or missing,
                    cause="" if hopeless else state.progress(read) if state.progress(read) != missing else "",
                    state=state.name,
                )
            self.report.progress(run.plan.host, f"{state.name}: {state.progress(read)}")
            self._stop_if_asked()
            time.sleep(self.poll)

    def _witness(self, run: _Progress, step: Step) -> None:
        files = step.witnesses
        if not files:
            return
        self.report.progress(run.plan.host, f"{step.state.name}: asking the witnesses")
        said = self._patiently(lambda: self.witnesses(files, self.connection, step.item))
        self.log.write("witness", state=step.state.name, files=list(files), disagree=said)
        if said:
            raise StateFailed("a witness disagrees", cause=said[0], state=step.state.name)

    def _stop_if_asked(self) -> None:
        if self._lock_lost.is_set():
            raise LockLost(
                "the lock of this host was taken by somebody else",
                cause="no renewal got through for too long",
                hint="nothing more was done and nothing undone; find out who took it, then run this again",
            )
        if self.turns is not None:
            self.turns.check()
        if self.connection.cancelled():
            raise KeyboardInterrupt

    def _mark(self, outcome: RunResult, line: StateResult) -> None:
        outcome.states.append(line)
        self.log.write("state", state=line.name, outcome=str(line.mark), seconds=round(line.seconds, 2), detail=line.detail)
        self.report.state(outcome.host, line)

    # ------------------------------------------------------------ undoing

    def _undo_all(self, run: _Progress) -> None:
        """Undo what this run (and the one it resumed) did, in reverse, each verified."""
        if run.outcome.mark is Status.REFUSED:
            return
        self.report.note(run.plan.host, f"failed: {run.outcome.error}; undoing")
        acted = [step.state for step in reversed(run.steps) if step.state.name in run.ledger.acted]
        for number, state in enumerate(acted, 1):
            self._undo(run, state, acted[number:])

    def _undo(self, run: _Progress, state: State, later: Sequence[State]) -> None:
        """Undo ``state``; raise UndoFailed with the commands left for it and for those whose turn was to come ``later``."""
        start = time.monotonic()
        commands: Sequence[Command] = ()
        try:
            self._patiently(self._settle)  # Ctrl-C or a deadline leaves the command that it met at work on the host
            undo = self._way_back(run, state)
            if isinstance(undo, NoUndo):
                self.log.write("kept", state=state.name, reason=undo.reason)
                return
            commands = undo
            self.report.progress(run.plan.host, f"undo {state.name}")
            for command in commands:
                self.log.intent(f"undo {state.name}", command)
                result = self._retrying(command)
                self.log.result(f"undo {state.name}", result)
                result.check(run.plan.host)
            self._await_undone(run, state)
        except Exception as raised:  # noqa: BLE001  whatever it was, the commands that are left must be told
            error = self._failure(raised)
            self._mark(run.outcome, StateResult(state.name, Status.UNDO_FAILED, time.monotonic() - start, str(error)))
            run.outcome.mark = Status.UNDO_FAILED
            commands = [*commands, *self._left(run, later)]
            left = "\n".join(f"  {command.by_hand()}" for command in commands) or "  (run the same task again)"
            first = run.outcome.error
            cause = f"{error}; the run had failed with: {first}"
            raise UndoFailed(
                "the host could not be put back", cause=cause, hint=f"run by hand:\n{left}", state=state.name
            ) from error
        self._mark(run.outcome, StateResult(state.name, Status.UNDONE, time.monotonic() - start))

    def _left(self, run: _Progress, states: Sequence[State]) -> Iterator[Command]:
        """Yield what would undo ``states``, as far as the host still tells."""
        for state in states:
            with contextlib.suppress(LodgerError):
                undo = state.undo(run.before, self._fresh([*state.facts, *state.undo_facts]))
                yield from () if isinstance(undo, NoUndo) else undo

    def _way_back(self, run: _Progress, state: State) -> Sequence[Command] | NoUndo:
        """Return the undo of ``state``; what cannot be read while a daemon restarts is read again."""
        end = time.monotonic() + _RESTART
        while True:
            try:
                return state.undo(run.before, self._fresh([*state.facts, *state.undo_facts]))
            except facts.Unreadable:
                if time.monotonic() > end:
                    raise
            time.sleep(self.poll)

    def _retrying(self, command: Command) -> Result:
        """Run ``command``, again after a lost connection: undo commands may be repeated."""
        for _ in range(_ATTEMPTS):
            try:
                return self.connection.run(command)
            except ConnectionLost:
                self._reconnect()
        return self.connection.run(command)

    def _await_undone(self, run: _Progress, state: State) -> None:
        end = time.monotonic() + max(state.undo_deadline, _RESTART)
        while True:
            hopeless = ""
            try:
                now = self._fresh([*state.facts, *state.undo_facts])
                differs = state.undone(run.before, now)
                hopeless = state.undo_hopeless(run.before, now) if differs else ""
            except facts.Unreadable as error:  # a daemon that is just restarting
                differs = str(error)
            if not differs:
                return
            if hopeless or time.monotonic() > end:
                self._keep_evidence(run, state, state.undo_facts)
                raise StateFailed(f"{differs}: {hopeless}" if hopeless else differs)
            self.report.progress(run.plan.host, f"undo {state.name}: {differs}")
            time.sleep(self.poll)


class _Booted(Exception):
    """The host has booted in mid run: what was established before may hold no longer."""


@dataclass
class _Progress:
    """One run while it goes on.

    ``before`` is how the first try found the host, ``stale`` that something was done since the first reading, ``begun``
    that a ledger is on the host, ``boot`` the boot that the states gone through so far count on, ``worked`` the groups of
    which a state was established.
    """

    plan: Plan
    steps: list[Step]
    before: Facts
    ledger: Ledger
    outcome: RunResult
    stale: bool = False
    begun: bool = False
    boot: str = ""
    worked: set[tuple[int, str]] = field(default_factory=set)

    def knows(self, names: Iterable[str]) -> bool:
        """Return whether each of the states ``names`` is one of this run's."""
        return set(names) <= {step.state.name for step in self.steps}


def remarks(plan: Plan, steps: Sequence[Step], read: Facts) -> tuple[str, ...]:
    """Return what whoever reads plan or report has to know: the plan's lines, and those of its states."""
    return tuple(filter(None, [*plan.remarks(read), *(step.state.remark(read) for step in steps)]))


def _refusal(found: Sequence[Blocker]) -> Refused:
    first = found[0]
    others = "".join(
        f"\n  also: {blocker.what}{f' ({blocker.cause})' if blocker.cause else ''}{f'; {blocker.hint}' if blocker.hint else ''}"
        for blocker in found[1:]
    )
    return Refused(first.what, cause=first.cause, hint=first.hint + others)


def _digest(read: Facts) -> dict[str, Any]:
    """Return the raw readings for the journal, each cut to a bounded length."""
    return {
        name: text if len(text) <= 2000 else text[:2000] + f"... {len(text)} characters"
        for name, (_, text) in read.sections.items()
    }
