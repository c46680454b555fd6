"""The undo of a run: in reverse, each state verified; the commands that a person has to run are printed completely."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from lodger.errors import ConnectionLost, LodgerError, StateFailed, UndoFailed
from lodger.host import facts
from lodger.host.command import Command, Result
from lodger.host.facts.base import Facts
from lodger.run.evidence import keep_evidence
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.run.progress import Progress
from lodger.run.session import ATTEMPTS, Session
from lodger.states.base import NoUndo, State

_RESTART = 60.0  # seconds that a daemon of the host may take to come back while something is undone


class Undo:
    """Undoes what ``run`` did; ``note`` records the result of each state."""

    def __init__(self, session: Session, run: Progress, note: Callable[[RunResult, StateResult], None]) -> None:
        self.session, self.run, self._note = session, run, note

    def all(self) -> None:
        """Undo what this run (and the one it resumed) did, in reverse, each verified."""
        run = self.run
        if run.result.status is Status.REFUSED:
            return
        self.session.report.note(run.plan.host, f"failed: {run.result.error}; undoing")
        acted = [step.state for step in reversed(run.plan.steps) if step.state.name in run.ledger.acted]
        for number, state in enumerate(acted, 1):
            self._undo(state, acted[number:])

    def _undo(self, state: State, later: Sequence[State]) -> None:
        """Undo ``state``; raise UndoFailed with the commands left for it and for those that come ``later``."""
        session, run, start = self.session, self.run, time.monotonic()
        commands: Sequence[Command] = ()
        try:
            session.patiently(session.settle)  # after Ctrl-C or a deadline the last command may still be running on the host
            undo = self._way_back(state)
            if isinstance(undo, NoUndo):
                session.log.write("kept", state=state.name, reason=undo.reason)
                return
            commands = undo
            session.report.progress(run.plan.host, f"undo {state.name}")
            for command in commands:
                session.log.intent(f"undo {state.name}", command)
                result = self._retrying(command)
                session.log.result(f"undo {state.name}", result)
                result.check(run.plan.host)
            self._await(state)
        except Exception as raised:  # noqa: BLE001  after any error the commands that are left must be printed
            error = session.failure(raised)
            self._note(run.result, StateResult(state.name, Status.UNDO_FAILED, time.monotonic() - start, str(error)))
            run.result.status = Status.UNDO_FAILED
            left = "\n".join(f"  {command.by_hand()}" for command in [*commands, *self._left(later)])
            cause = f"{error}; the run had failed with: {run.result.error}"
            hint = f"run by hand:\n{left or '  (run the same task again)'}"
            raise UndoFailed("the host could not be put back", cause=cause, hint=hint, state=state.name) from error
        self._note(run.result, StateResult(state.name, Status.UNDONE, time.monotonic() - start))

    def _read(self, state: State) -> Facts:
        return self.session.fresh([*state.facts, *state.undo_facts])

    def _left(self, states: Sequence[State]) -> Iterator[Command]:
        """Yield the commands that would undo ``states``, without those whose facts cannot be read."""
        for state in states:
            with contextlib.suppress(LodgerError):
                undo = state.undo(self.run.before, self._read(state))
                yield from () if isinstance(undo, NoUndo) else undo

    def _way_back(self, state: State) -> Sequence[Command] | NoUndo:
        """Return the undo of ``state``; facts that cannot be read while a daemon restarts are read again."""
        end = time.monotonic() + _RESTART
        while True:
            try:
                return state.undo(self.run.before, self._read(state))
            except facts.Unreadable:
                if time.monotonic() > end:
                    raise
            time.sleep(self.session.poll)

    def _retrying(self, command: Command) -> Result:
        """Run ``command``, again after a lost connection: undo commands may be repeated."""
        for _ in range(ATTEMPTS):
            try:
                return self.session.connection.run(command)
            except ConnectionLost:
                self.session.reconnect()
        return self.session.connection.run(command)

    def _await(self, state: State) -> None:
        """Read until ``state`` is undone; raise StateFailed when it no longer can be, or its deadline has passed."""
        run, end = self.run, time.monotonic() + max(state.undo_deadline, _RESTART)
        while True:
            hopeless = ""
            try:
                now = self._read(state)
                differs = state.undone(run.before, now)
                hopeless = state.undo_hopeless(run.before, now) if differs else ""
            except facts.Unreadable as error:  # a daemon that is just restarting
                differs = str(error)
            if not differs:
                return
            if hopeless or time.monotonic() > end:
                keep_evidence(self.session, run, state, state.undo_facts)
                raise StateFailed(f"{differs}: {hopeless}" if hopeless else differs)
            self.session.report.progress(run.plan.host, f"undo {state.name}: {differs}")
            time.sleep(self.session.poll)
