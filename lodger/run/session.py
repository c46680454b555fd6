"""One run on one host: its lock, its readings, and what happens when the connection is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lodger.errors import CommandFailed, ConnectionFailed, ConnectionLost, LockLost, LodgerError, Refused, StateFailed
from lodger.host import facts, paths
from lodger.host.command import Command
from lodger.host.facts.base import Fact, Facts
from lodger.host.identity import only_there, refuse_unless_recorded
from lodger.locks import host_lock
from lodger.locks.pool_lock import PoolLock
from lodger.locks.process_queue import PoolQueue
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult, Status
from lodger.run.protocols import Connection, Reporter, RunLog
from lodger.states.base import Step

T = TypeVar("T")

POLL = 2.0  # seconds between two readings while a state comes true
ATTEMPTS = 3  # how often something is tried again after a lost connection
_SETTLE = 3900.0  # seconds to wait for a command of a lost connection (the install of a driver may take 3600)


@dataclass(frozen=True)
class Opened:
    """What a run finds once it has the host's lock: the facts, and the ledger of an unfinished run, None for none.

    ``no_lock`` says why there is no lock, "" when there is one: on a full or read-only disk only a refusal can follow.
    """

    read: Facts
    ledger: Ledger | None = None
    no_lock: str = ""


class Session:
    """One run on one host, from its lock to its end.

    Every reading goes through here: after a lost connection it connects again, and first waits until the command of the old
    connection has ended on the host.
    """

    def __init__(
        self,
        connection: Connection,
        log: RunLog,
        report: Reporter,
        *,
        user: str,
        machine_id: str | None,
        break_lock: bool = False,
        queue: PoolQueue | None = None,
        pool_lock: PoolLock | None = None,
        poll: float = POLL,
    ) -> None:
        self.connection, self.log, self.report, self.poll = connection, log, report, poll
        self.host, self.user = connection.host, user
        self.queue, self.pool_lock = queue or PoolQueue(), pool_lock
        self.boot = ""  # the host's boot id, as it was when this run last connected
        self._machine_id, self._break_lock = machine_id, break_lock
        self._me = host_lock.me(user, log.run)
        self._lock_lost = threading.Event()

    # ------------------------------------------------------------ beginning and end

    @contextlib.contextmanager
    def result(self, task: str) -> Iterator[RunResult]:
        """Yield the run's result; any error that ends the block becomes part of it, a bug too."""
        start = time.monotonic()
        result = RunResult(self.host, task, journal=self.log.run)
        try:
            yield result
        except Exception as raised:  # noqa: BLE001  every error is reported as a result, a bug too
            error = self.failure(raised)
            error.host = error.host or self.host
            result.error = error
            if result.status not in {Status.FAILED, Status.UNDO_FAILED}:
                result.status = Status.of(error)
        except KeyboardInterrupt:
            result.error = StateFailed("the run was interrupted before it began", host=self.host)
            result.status = Status.FAILED
        result.round_trips = self.connection.round_trips
        result.seconds = time.monotonic() - start
        self.log.write("end", outcome=str(result.status), error=str(result.error or ""), changed=result.changed)

    @contextlib.contextmanager
    def locked(self, runbook: str, reads: Sequence[Fact[Any]], result: RunResult) -> Iterator[Opened]:
        """Take the host's lock, read ``reads``, and yield what is found; the lock is renewed meanwhile, and released.

        A run that found every state satisfied has released it itself (see ``unlock``).
        """
        wanted: tuple[Fact[Any], ...] = (facts.MACHINE, facts.LEDGER, *reads)
        read, no_lock = self._open(wanted)
        finished = False
        try:
            with self._renewing():
                if read[facts.BUSY] and not no_lock:
                    self.settle()
                    read = self.fresh(wanted)
                ledger = None if no_lock else Ledger.load(read[facts.LEDGER], runbook, self.host)
                yield Opened(read, ledger, no_lock)
            finished = True
        finally:
            if not finished or result.status is not Status.SATISFIED or result.losses:
                self._release()

    def look(self, runbook: str, reads: Sequence[Fact[Any]]) -> Opened:
        """Read ``reads`` and return them with the ledger on the host; nothing is changed, no lock is taken."""
        read = self.read((facts.MACHINE, facts.LEDGER, *reads))
        refuse_unless_recorded(self._machine_id, read[facts.MACHINE])
        return Opened(read, Ledger.load(read[facts.LEDGER], runbook, self.host))

    def _open(self, wanted: Sequence[Fact[Any]]) -> tuple[Facts, str]:
        """Check that this is the machine, take the lock, and read everything, in one round trip."""
        attempt = host_lock.attempt(self._me)
        asked: list[Fact[Any]] = [facts.MACHINE, attempt, facts.BUSY, *wanted]
        command = facts.command(asked)
        # On another machine, or one whose machine-id is not recorded, nothing is written, not even the lock.
        guard = only_there(self._machine_id, facts.script([facts.MACHINE]))
        command = dataclasses.replace(command, script=guard + command.script)
        read = facts.parse(self.connection.run(command).check(self.host).stdout, self.host)
        refuse_unless_recorded(self._machine_id, read[facts.MACHINE])
        self.boot = read[facts.MACHINE].boot_id
        held = read[attempt]
        if not held.taken and not held.failure:
            self._take_over(held)
        return read, held.failure

    def _take_over(self, held: host_lock.Attempt) -> None:
        """Take the lock over where the rules allow it, else raise Refused."""
        verdict = host_lock.judge(held, self._me, host_lock.process_start(held.owner.pid) if held.owner else 0)
        if verdict is host_lock.Verdict.LIVE or (verdict is host_lock.Verdict.EXPIRED and not self._break_lock):
            live = verdict is host_lock.Verdict.LIVE
            silent = "its owner no longer renews the lock: if that run is dead, run this again with --break-lock"
            hint = "wait until it ends, then run this again" if live else silent
            who = str(held.owner) if held.owner else "an owner that left no name"
            raise Refused("another run holds this host", cause=f"{who}, last renewed {held.age:.0f} s ago", hint=hint)
        self.log.write("lock", verdict=str(verdict.value), held=held.text)
        self.report.note(self.host, f"taking over the lock of {held.owner} ({verdict.value})")
        if self.connection.run(host_lock.take_over(held, self._me)).code != 0:
            raise Refused("another run took the lock over first", hint="wait until it ends, then run this again")

    @contextlib.contextmanager
    def _renewing(self) -> Iterator[None]:
        """Renew the lock while the block runs."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(host_lock.RENEWAL):
                with contextlib.suppress(LodgerError, KeyboardInterrupt):  # the main thread sees the lost connection too
                    if self.connection.run(host_lock.renew(self._me)).code == 1:
                        self._lock_lost.set()
                        return

        threading.Thread(target=renew, name=f"lock-{self.host}", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def unlock(self) -> None:
        """Release the lock and raise when that fails: for a run that found nothing to do, before it reports anything."""
        self.connection.run(Command(host_lock.release_script(self._me), why="unlock")).check(self.host)

    def _release(self) -> None:
        """Release the lock; over a dead connection it expires by itself."""
        self.no_more_stopping()
        with contextlib.suppress(ConnectionFailed, CommandFailed):
            self.connection.run(Command(host_lock.release_script(self._me), why="unlock"))

    # ------------------------------------------------------------ being stopped

    def no_more_stopping(self) -> None:
        """From here on Ctrl-C interrupts nothing: the run is being finished or undone."""
        self.connection.cancelled = lambda: False

    def stop_if_asked(self) -> None:
        """Raise an error when another run took over a lock of this one, or the operator pressed Ctrl-C."""
        if self._lock_lost.is_set():
            raise LockLost(
                "the lock of this host was taken over by another run",
                cause="it could not be renewed for too long",
                hint="this run stopped at once and undid nothing; find out who has the lock, then run this again",
            )
        if self.pool_lock is not None:
            self.pool_lock.check()
        if self.connection.cancelled():
            raise KeyboardInterrupt

    def failure(self, error: BaseException) -> LodgerError:
        """Return ``error`` as a failure to report; for a bug the journal keeps the traceback."""
        if isinstance(error, LodgerError):
            return error
        if isinstance(error, KeyboardInterrupt):
            return StateFailed("the run was interrupted", cause="Ctrl-C or SIGTERM")
        self.log.write("internal error", traceback="".join(traceback.format_exception(error))[-4000:])
        hint = f"report it, with the traceback that this shows: ./ops journal --show {self.log.run}"
        return StateFailed("this is a bug in Lodger", cause=f"{type(error).__name__}: {error}", hint=hint)

    # ------------------------------------------------------------ reading

    def read(self, wanted: Sequence[Fact[Any]]) -> Facts:
        """Return ``wanted`` as it is now."""
        result = self.connection.run(facts.command(wanted)).check(self.host)
        return facts.parse(result.stdout, self.host)

    def fresh(self, wanted: Sequence[Fact[Any]]) -> Facts:
        """Return ``wanted`` as it is now, connecting again where the connection was lost."""
        return self.patiently(lambda: self.read(wanted))

    def complete(self, read: Facts, wanted: Sequence[Fact[Any]]) -> Facts:
        """Return ``read`` if it has all of ``wanted``, else ``wanted`` as it is now."""
        if all(fact in read for fact in wanted):
            return read
        return self.read((facts.MACHINE, facts.LEDGER, *wanted))

    def patiently(self, action: Callable[[], T]) -> T:
        """Return what ``action`` returns, connecting again where the connection was lost."""
        for _ in range(ATTEMPTS):
            try:
                return action()
            except ConnectionLost as error:
                self.log.write("connection lost", cause=str(error))
                self.report.note(self.host, "the connection was lost; connecting again")
                self.reconnect()
        return action()

    def reconnect(self) -> None:
        """Connect again, and wait until what the lost connection left running has ended: before that, facts still change."""
        self.connection.reconnect()
        self.settle()

    def settle(self) -> None:
        """Wait until no command of a lost connection, or of a run that died, is at work on the host."""
        end = time.monotonic() + _SETTLE
        while True:
            read = self.read([facts.BUSY, facts.MACHINE])
            busy, self.boot = read[facts.BUSY], read[facts.MACHINE].boot_id
            if not busy:
                return
            if time.monotonic() > end:
                raise StateFailed(
                    "an earlier command on the host does not end",
                    cause=busy[0].strip()[:160],
                    hint="look at it on the host; end it if it hangs, then run this again",
                )
            self.report.progress(self.host, f"an earlier command is still running: {busy[0].strip()[:80]}")
            time.sleep(self.poll)

    def write_ledger(self, ledger: Ledger) -> None:
        """Put the ledger on the host, whole or not at all."""
        command = paths.write(paths.LEDGER, ledger.text(), why="write the ledger", mode="0600")
        self.patiently(lambda: self.connection.run(command).check(self.host))

    # ------------------------------------------------------------ pools

    def take_pools(self, step: Step) -> bool:
        """Wait until no other run holds the pools of ``step``, and hold them; return whether it had to wait."""
        waited = False

        def waiting(other: str) -> None:
            nonlocal waited
            waited = True
            self.stop_if_asked()
            self.report.progress(self.host, f"{step.state.name}: waiting for {other}")

        for pool in step.pools:
            self.queue.enter(pool, self.host, waiting)
        if step.pools and (lock := self.pool_lock) is not None:
            self.patiently(lambda: lock.take(step.pools, waiting))
        return waited

    def leave_pools(self) -> None:
        """Release the pools that this run holds."""
        if self.pool_lock is not None:
            self.pool_lock.give_back()
        self.queue.leave(self.host)
