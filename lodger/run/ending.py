"""The end of a run: the footprint compared, the journal left on the host, the ledger ended."""

from __future__ import annotations

import contextlib

from lodger.errors import LodgerError, StateFailed
from lodger.host import facts, paths
from lodger.host.command import Command, quote
from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner, names
from lodger.run import footprint
from lodger.run.outcome import RunResult, Status
from lodger.run.progress import Progress
from lodger.run.session import Session


def close(session: Session, run: Progress) -> None:
    """Compare the footprint with the one before, put the journal on the host, and end the ledger."""
    result, now = run.result, session.fresh(run.plan.facts)
    states = [step.state for step in run.plan.steps]
    touched = frozenset(owner for state in states for owner in state.touched(run.before) | state.touched(now))
    _compare(run.before, now, touched, result)
    if result.losses:
        lost = ", ".join(f"{change.kind} {change.name}" for change in result.losses)
        session.log.write("losses", losses=[str(change) for change in result.losses])
        if result.error is None:
            result.error = StateFailed(
                f"something foreign was lost or changed: {lost}", hint="find out whether this run or its owner did it"
            )
    if not run.begun:
        return
    # An earlier run may have begun states that this plan does not have and cannot undo: the ledger keeps naming them.
    if result.status is Status.FAILED and not run.knows(run.ledger.acted):
        back = run.before[facts.DEPLOYED].standing == now[facts.DEPLOYED].standing
        result.unfinished = bool(result.losses) or not back
    leave = _copy(session, ends_ledger=not result.unfinished)
    session.patiently(lambda: session.connection.run(leave).check(run.plan.host))


def leave_copy(session: Session, run: Progress) -> None:
    """Leave a copy for the person who has to put the host back by hand; a failure here must not hide the first one."""
    if run.begun:
        session.no_more_stopping()
        with contextlib.suppress(LodgerError):
            session.connection.run(_copy(session, ends_ledger=False))


def _copy(session: Session, *, ends_ledger: bool) -> Command:
    """Return the command that puts a copy of the journal on the host, and may end the ledger."""
    end = f" && rm -f {paths.LEDGER}" if ends_ledger else ""
    folder, copy = paths.JOURNAL, quote([f"{paths.JOURNAL}/{session.log.run}.jsonl"])
    script = f"umask 077 && mkdir -p {folder} && chmod 700 {folder} && cat > {copy}{end} && sync -f {paths.VAR}"
    why = "leave the journal, end the ledger" if ends_ledger else "leave the journal"
    return Command(script, why=why, stdin=session.log.content())


def _compare(before: Facts, after: Facts, touched: frozenset[Owner], result: RunResult) -> None:
    rebooted = before[facts.MACHINE].boot_id != after[facts.MACHINE].boot_id
    changes = footprint.difference(
        footprint.of(before, result.host, rebooted=rebooted),
        footprint.of(after, result.host, rebooted=rebooted),
        lambda owner: bool(names(owner, after) & touched),
    )
    result.losses = [change for change in changes if change.loss]
    result.news = [change for change in changes if not change.loss]
