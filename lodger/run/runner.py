"""The loop over the states of one plan: skip what holds, establish what does not, and undo everything when one fails.

It decides from facts, never from an exit code that may be lost with the connection. Facts are read again after every action.
"""

from __future__ import annotations

import dataclasses
import time

from lodger.errors import ConnectionLost, LockLost, LodgerError, Refused, StateFailed
from lodger.host import paths
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.run import ending, refusal
from lodger.run.evidence import digest, keep_evidence
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.run.plan import Plan
from lodger.run.progress import Booted, Progress
from lodger.run.protocols import Witnesses
from lodger.run.session import ATTEMPTS, Opened, Session
from lodger.run.undo import Undo
from lodger.states.base import Check, State, Step

_BOOTS = 3  # how often a run goes through the states when the host reboots meanwhile


class Runner:
    """Establishes one plan on the host of ``session``."""

    def __init__(self, session: Session, witnesses: Witnesses) -> None:
        self.session, self.witnesses = session, witnesses

    def carry_out(self, plan: Plan, opened: Opened, result: RunResult) -> None:
        """Establish ``plan`` from the facts read under the lock; raise an error that ends the run before its first change."""
        session, ledger = self.session, opened.ledger
        read = session.complete(opened.read, plan.facts)
        if opened.no_lock:
            self._refuse_without_lock(plan, read, opened.no_lock)
        # A fact that the earlier run did not read was not changed by it: what is read now is from before.
        before = Facts.load(ledger.before, plan.host).over(read) if ledger is not None else read
        result.remarks = refusal.remarks(plan, read)
        for remark in result.remarks:
            session.report.note(plan.host, remark)
        if ledger is not None:
            session.report.note(plan.host, f"run {ledger.run} did not finish; continuing it")
        session.log.write("facts", moment="before", facts=digest(read), ledger=ledger.run if ledger else None)
        if ledger is None and all(not step.state.missing(read) for step in plan.steps):
            self._nothing_to_do(plan, result)
            return
        if ledger is None:
            refusal.refuse_early(plan.steps, read, result)
        self._refuse_held_pools(plan, read)
        own = Ledger(session.log.run, plan.runbook, plan.params, session.user, before.dump())
        if ledger is not None:
            own = dataclasses.replace(own, acted=ledger.acted, stops=ledger.stops)
        run = Progress(plan, before, own, result, begun=ledger is not None)
        try:
            self._carry_out(run, read)
        except Exception:
            ending.leave_copy(session, run)
            raise

    def _refuse_without_lock(self, plan: Plan, read: Facts, why: str) -> None:
        """Raise Refused, with the blocker of a state that names a full or read-only disk when there is one."""
        found = [blocker for step in plan.steps for blocker in step.state.blockers(read) if not blocker.awaits]
        if found:
            raise refusal.refusal(found)
        raise Refused("the lock cannot be taken", cause=why, hint=f"look at {paths.VAR} on the host")

    def _nothing_to_do(self, plan: Plan, result: RunResult) -> None:
        """Finish a run that found every state satisfied: nothing was done, so there is nothing to compare."""
        self.session.unlock()
        for step in plan.steps:
            self._note(result, StateResult(step.state.name, Status.SATISFIED))

    def _refuse_held_pools(self, plan: Plan, read: Facts) -> None:
        """Raise Refused when only a person may break the lock of a pool; an unfinished run stays unfinished then."""
        due = {pool for step in plan.steps if step.pools and step.state.missing(read) for pool in step.pools}
        if (lock := self.session.pool_lock) is not None:
            self.session.patiently(lambda: lock.look(due))

    def _carry_out(self, run: Progress, read: Facts) -> None:
        """Establish the states, or undo what was done; raise an error that leaves the ledger on the host."""
        session, result, host = self.session, run.result, run.plan.host
        try:
            if run.begun:  # a refusal must undo what the earlier run began
                refusal.refuse_early(run.plan.steps, read, result)
            self._establish_all(run, read)
        except LockLost:
            session.queue.fail(host)
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  a bug must not leave a host half changed
            result.error = session.failure(error)
            result.error.host = host
            result.status = Status.REFUSED if isinstance(error, Refused) and not run.begun else Status.FAILED
            session.queue.fail(host)
            session.no_more_stopping()
            Undo(session, run, self._note).all()
        finally:
            session.leave_pools()
        session.no_more_stopping()
        ending.close(session, run)

    def _establish_all(self, run: Progress, read: Facts) -> None:
        """Go through the states; start again with the first one when the host has rebooted."""
        session = self.session
        for _ in range(_BOOTS):
            run.boot = session.boot
            try:
                self._walk(run, read)
            except Booted:
                session.log.write("booted", boot=session.boot)
                session.report.note(run.plan.host, "the host has rebooted; starting again with the first state")
                run.result.states.clear()
                run.result.changed.clear()
                read = session.fresh(run.plan.facts)
            else:
                run.result.status = Status.DONE
                return
        raise StateFailed(f"the host rebooted {_BOOTS} times during this run", hint="find out why, then run this again")

    def _walk(self, run: Progress, read: Facts) -> None:
        for step in run.plan.steps:
            start, state = time.monotonic(), step.state
            self.session.stop_if_asked()
            self._same_boot(run, state)
            if run.stale:
                read = self.session.fresh(state.facts)
            missing = state.missing(read)
            acts = bool(missing) or state.name in run.ledger.acted
            if acts:
                run.worked.add(step.group)
            if missing:
                try:
                    if self.session.take_pools(step):
                        run.stale = True  # other runs changed the pool meanwhile
                        read = self.session.fresh(state.facts)
                        missing = state.missing(read)
                    if missing:
                        self._establish(run, step, read, missing)
                except (LodgerError, KeyboardInterrupt):
                    self._note(run.result, StateResult(state.name, Status.FAILED, time.monotonic() - start))
                    raise
            if step.group in run.worked:  # also when the group's last state held already
                self._witness(run, step)
            if acts:
                self._note(run.result, StateResult(state.name, Status.DONE, time.monotonic() - start, missing))
                run.result.changed.append(state.name)
            else:
                self._note(run.result, StateResult(state.name, Status.SATISFIED))
            if step.frees_pools:
                self.session.leave_pools()

    def _same_boot(self, run: Progress, state: State) -> None:
        """Raise Booted after an unplanned reboot: what earlier states established may be gone."""
        if state.reboots:
            run.boot = self.session.boot
        elif run.boot != self.session.boot:
            raise Booted

    # ------------------------------------------------------------ one state

    def _establish(self, run: Progress, step: Step, read: Facts, missing: str) -> None:
        session, state = self.session, step.state
        session.report.progress(run.plan.host, f"{state.name}: {missing}")
        for blocker in state.blockers(read):
            kind = StateFailed if run.begun else Refused
            raise kind(blocker.what, cause=blocker.cause, hint=blocker.hint, state=state.name)
        if state.only_waits and not run.begun:
            self._wait_first(run, state)
            return
        self._note_intent(run, state, read, missing)
        for attempt in range(ATTEMPTS):
            try:
                for action in state.act(read):
                    session.stop_if_asked()
                    self._same_boot(run, state)
                    self._perform(run, state, action)
                break
            except ConnectionLost as error:
                session.log.write("connection lost", state=state.name, cause=str(error))
                session.report.note(run.plan.host, f"the connection was lost during {state.name}; connecting again")
                session.reconnect()
                read = session.fresh(state.facts)
                if not state.missing(read):
                    break
                if attempt == ATTEMPTS - 1:
                    raise
        run.stale = True
        self._await(run, state)

    def _wait_first(self, run: Progress, state: State) -> None:
        """Wait for ``state`` before the first change: past its deadline the run is refused, with nothing to undo."""
        run.stale = True
        try:
            self._await(run, state)
        except StateFailed as error:
            raise Refused(
                error.what, cause=error.cause, hint="nothing was changed; run this again later", state=state.name
            ) from error
        run.before = self.session.fresh(run.plan.facts)  # a service that ended while this run only waited is not its loss
        run.ledger = dataclasses.replace(run.ledger, before=run.before.dump())

    def _note_intent(self, run: Progress, state: State, read: Facts, missing: str) -> None:
        """Write the ledger on the host before the first effect of ``state``."""
        old = run.ledger
        acted, stops = dict.fromkeys((*old.acted, state.name)), dict.fromkeys((*old.stops, *state.stops(read)))
        run.ledger = dataclasses.replace(old, acted=tuple(acted), stops=tuple(stops))
        self.session.log.write("intent", state=state.name, missing=missing, stops=state.stops(read))
        self.session.write_ledger(run.ledger)
        run.begun = True

    def _perform(self, run: Progress, state: State, action: Command | Check) -> None:
        session, host = self.session, run.plan.host
        session.log.intent(state.name, action)
        run.stale = True
        if isinstance(action, Check):
            self._check(run, state, action)
            return
        result = session.connection.run(action, lambda line: session.report.progress(host, f"{state.name}: {line}"))
        session.log.result(state.name, result)
        if not result.ok:
            lines = [line for line in (result.stderr.strip() or result.stdout.strip()).splitlines() if line.strip()]
            cause = "; ".join(lines[-2:]) if lines else f"exit code {result.code}, nothing printed"
            keep_evidence(session, run, state)
            self._same_boot(run, state)  # a reboot may end the command before it ends the connection
            raise StateFailed(f"could not {action.why}" if action.why else f"`{action}` failed", cause=cause, state=state.name)

    def _check(self, run: Progress, state: State, action: Check) -> None:
        session, host = self.session, run.plan.host
        try:
            said = action.run(session.connection, lambda text: session.report.progress(host, f"{state.name}: {text}"))
        except LodgerError as error:
            session.log.write("check", state=state.name, passed=False, said=str(error))
            keep_evidence(session, run, state)
            self._same_boot(run, state)
            raise
        session.log.write("check", state=state.name, passed=True, said=said)
        session.report.note(host, said)

    def _await(self, run: Progress, state: State) -> None:
        """Read until ``state`` holds; raise StateFailed when it no longer can, or its deadline has passed."""
        session, end = self.session, time.monotonic() + state.deadline
        while True:
            read = session.fresh(state.facts)
            self._same_boot(run, state)
            missing = state.missing(read)
            if not missing:
                return
            hopeless = state.hopeless(read)
            if hopeless or time.monotonic() > end:
                keep_evidence(session, run, state)
                raise StateFailed(
                    hopeless or f"after {state.deadline:.0f} s: {missing}" if state.deadline else hopeless or missing,
                    cause="" if hopeless else state.progress(read) if state.progress(read) != missing else "",
                    state=state.name,
                )
            session.report.progress(run.plan.host, f"{state.name}: {state.progress(read)}")
            session.stop_if_asked()
            time.sleep(session.poll)

    def _witness(self, run: Progress, step: Step) -> None:
        files, session = step.witnesses, self.session
        if not files:
            return
        session.report.progress(run.plan.host, f"{step.state.name}: asking the witnesses")
        said = session.patiently(lambda: self.witnesses(files, session.connection, step.item))
        session.log.write("witness", state=step.state.name, files=list(files), disagree=said)
        if said:
            raise StateFailed("a witness disagrees", cause=said[0], state=step.state.name)

    def _note(self, result: RunResult, line: StateResult) -> None:
        """Write the result of a state into the journal, and show it."""
        result.states.append(line)
        seconds = round(line.seconds, 2)
        self.session.log.write("state", state=line.name, outcome=str(line.status), seconds=seconds, detail=line.detail)
        self.session.report.state(result.host, line)
