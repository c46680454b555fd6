"""The lock of a pool: runs of two commands take turns, whoever began them and on whichever host. Its scripts run in a real shell."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.errors import ConnectionFailed, ConnectionLost, Refused, StateFailed
from lodger.host import paths
from lodger.host.command import Command, Result
from lodger.inventory import Host
from lodger.locks import host_lock
from lodger.locks.host_lock import TTL, LockOwner
from lodger.locks.pool_lock import PoolLock
from lodger.plans.carry_out import router_hosts

MACHINE = "0" * 32
ME = host_lock.me("ops", "run-1")
OTHER = LockOwner("eve", "run-2", 17, 900, "machine-b")


class Shell:
    """A host in a folder."""

    def __init__(self, name: str, folder: Path, machine: str = MACHINE) -> None:
        self.host, self.folder, self.lost = name, folder, False
        self.ran: list[str] = []
        self.refused = ""
        folder.mkdir(exist_ok=True)
        (folder / "machine-id").write_text(machine + "\n")

    def run(self, command: Command) -> Result:
        if self.lost:
            raise ConnectionLost("it is gone")
        self.ran.append(command.why)
        script = command.script.replace(paths.VAR, f"{self.folder}/var").replace("/etc/machine-id", f"{self.folder}/machine-id")
        done = subprocess.run(["sh", "-c", self.refused + script], capture_output=True, text=True, timeout=20, check=False)
        return Result(command, done.returncode, done.stdout, done.stderr, 0.0)

    def forward(self, address: str, port: int) -> AbstractContextManager[int]:
        raise NotImplementedError

    @property
    def lock(self) -> Path:
        return self.folder / "var/lock-q"

    def hold(self, owner: LockOwner, age: float = 0) -> None:
        self.lock.parent.mkdir(exist_ok=True)
        self.lock.write_text(owner.text() + "\n")
        os.utime(self.lock, (time.time() - age,) * 2)

    def holder(self) -> str:
        return str(json.loads(self.lock.read_text())["run"]) if self.lock.exists() else ""


@pytest.fixture
def router(tmp_path: Path) -> Shell:
    """node2, whose router every pool has."""
    return Shell("node2", tmp_path / "node2")


class Run:
    """The turns of a run on node1, or on the router's own host."""

    def __init__(
        self,
        router: Shell,
        *,
        me: LockOwner = ME,
        here: bool = False,
        fails: bool = False,
        patience: float = 10,
        break_lock: bool = False,
    ) -> None:
        self.notes: list[str] = []
        self.waited: list[str] = []
        self.given_up = False
        self.connected = 0
        self.router, self.fails = router, fails
        host = inventory.load(CODE / "hosts").hosts["node2"].model_copy(update={"machine_id": MACHINE})
        own = router if here else Shell("node1", router.folder.parent / "node1")
        told, routers = self.notes.append, {"q": host, "r": host}
        self.turns = PoolLock(me, own, routers, self._connect, told, poll=0.05, patience=patience, break_lock=break_lock)

    def _connect(self, host: Host) -> Shell:
        self.connected += 1
        if self.fails:
            raise ConnectionFailed("it cannot be reached", host=host.name)
        return self.router

    def take(self, *pools: str) -> None:
        self.turns.take(pools or ("q",), self._waiting)

    def _waiting(self, other: str) -> None:
        self.waited.append(other)
        if self.given_up:
            raise KeyboardInterrupt


def fails(action: Callable[[], None]) -> StateFailed | None:
    try:
        action()
    except StateFailed as error:
        return error
    return None


def background(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def until_true(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("here", [False, True])
def test_the_run_of_another_command_waits_until_the_turn_is_given_back(here: bool, router: Shell) -> None:
    first, second = Run(router, here=here), Run(router, me=replace(ME, run="run-9"), here=not here)
    first.take()
    assert router.holder() == "run-1"
    thread = background(second.take)
    until_true(lambda: second.waited)
    assert second.waited[0].endswith("run run-1 in pool q")
    assert router.holder() == "run-1"
    first.turns.give_back()
    thread.join(10)
    assert router.holder() == "run-9"
    second.turns.give_back()
    assert not router.lock.parent.exists(), "nothing of ours is left"


def test_a_turn_is_taken_once_and_nobody_holds_two(router: Shell) -> None:
    run = Run(router)
    run.take()
    run.take()
    assert router.ran == ["take the lock of the pool"]
    run.take("r")
    assert not router.lock.exists(), "who waits for another pool keeps nobody waiting"
    assert (router.folder / "var/lock-r").exists()
    run.turns.give_back()


def test_the_turns_of_workers_that_are_away_together_are_taken_and_given_back_together(router: Shell) -> None:
    """A pool that has no lock, "s", lets go of none of the others."""
    other, second = router.folder / "var/lock-r", Run(router, me=replace(ME, run="run-9"))
    first = Run(router)
    first.take("r", "s", "q")
    first.take("r", "s", "q")
    assert (router.holder(), other.exists()) == ("run-1", True)
    assert router.ran == ["take the lock of the pool"] * 2
    thread = background(lambda: second.take("q"))
    until_true(lambda: second.waited)
    first.turns.give_back()
    thread.join(10)
    assert (router.holder(), other.exists()) == ("run-9", False)
    second.turns.give_back()


def test_runs_that_want_the_same_pools_the_other_way_round_do_not_wait_for_each_other(router: Shell) -> None:
    router.hold(OTHER)
    run = Run(router)
    thread = background(lambda: run.take("r", "q"))
    until_true(lambda: run.waited)
    assert not (router.folder / "var/lock-r").exists(), "the first name is waited for before the second is taken"
    router.lock.unlink()
    thread.join(10)
    assert (router.holder(), (router.folder / "var/lock-r").exists()) == ("run-1", True)
    run.turns.give_back()


def test_who_gives_up_waiting_takes_nothing(router: Shell) -> None:
    router.hold(OTHER)
    run = Run(router)
    run.given_up = True
    with pytest.raises(KeyboardInterrupt):
        run.take()
    run.turns.give_back()
    assert router.holder() == "run-2"


def test_waiting_has_an_end(router: Shell) -> None:
    router.hold(OTHER)
    with pytest.raises(StateFailed, match=r"pool q is still held by eve"):
        Run(router, patience=0.2).take()
    assert router.holder() == "run-2"


def test_the_turn_of_ones_own_dead_run_is_taken_over_at_once(router: Shell) -> None:
    router.hold(replace(ME, run="run-0", started=ME.started - 1))
    run = Run(router)
    run.take()
    assert (router.holder(), run.waited) == ("run-1", [])
    assert "taking over the lock of pool" in run.notes[0]
    run.turns.give_back()


def test_a_turn_whose_owner_is_silent_is_broken_only_by_hand(router: Shell) -> None:
    router.hold(OTHER, age=TTL + 60)
    with pytest.raises(StateFailed, match="pool q is held by another run") as caught:
        Run(router).take()
    assert "--break-lock" in caught.value.hint
    broken = Run(router, break_lock=True)
    broken.take()
    assert router.holder() == "run-1"
    broken.turns.give_back()


def test_a_turn_whose_owner_is_silent_is_refused_before_it_is_taken(router: Shell) -> None:
    router.hold(OTHER, age=TTL + 60)
    with pytest.raises(Refused, match="pool q is held by another run") as caught:
        Run(router).turns.look({"r", "q"})
    assert (caught.value.cause, router.holder()) == (str(OTHER), "run-2")
    assert "--break-lock" in caught.value.hint
    Run(router, break_lock=True).turns.look({"q"})
    assert router.holder() == "run-2"


@pytest.mark.parametrize("owner", [OTHER, replace(ME, run="run-0", started=ME.started - 1), None])
def test_a_turn_that_can_be_had_in_time_refuses_nothing(owner: LockOwner | None, router: Shell) -> None:
    """A live one is waited for; that of one's own dead run, however old, is taken over."""
    if owner is not None:
        router.hold(owner, age=TTL - 60 if owner is OTHER else TTL + 60)
    run = Run(router)
    run.turns.look({"q", "s"})
    assert (router.holder(), run.notes) == (owner.run if owner else "", [])
    assert router.lock.parent.exists() == (owner is not None), "it only looks"


def test_a_look_at_a_turn_over_a_lost_connection_is_the_runs_to_make_again_on_its_own_host_alone(router: Shell) -> None:
    router.lost = True
    with pytest.raises(ConnectionLost):
        Run(router, here=True).turns.look({"q"})
    away = Run(router)
    away.turns.look({"q"})
    assert away.notes == [], "it may be reachable again when the lock is taken"
    router.lost = False
    away.take()
    assert (router.holder(), away.connected) == ("run-1", 2)
    away.turns.give_back()


def test_a_connection_that_was_lost_since_the_look_is_made_again_for_the_turn(router: Shell) -> None:
    run = Run(router)
    run.turns.look({"q"})
    router.lost = True
    run.router = Shell("node2", router.folder)
    run.take()
    assert (router.holder(), run.notes) == ("run-1", [])
    run.turns.give_back()
    assert not router.lock.exists()


def test_a_router_whose_host_is_away_keeps_nobody_from_deploying(router: Shell) -> None:
    run = Run(router, fails=True)
    run.take()
    run.take("r")
    assert [note.partition(":")[0] for note in run.notes] == [f"pool {pool} is not locked against other runs" for pool in "qr"]
    lost = Run(router)
    router.lost = True
    lost.take()
    assert "it is gone" in lost.notes[0]
    lost.turns.give_back()


def test_a_lost_connection_of_its_own_is_the_runs_to_make_again(router: Shell) -> None:
    run = Run(router, here=True)
    router.lost = True
    with pytest.raises(ConnectionLost):
        run.take()
    router.lost = False
    run.take()
    assert router.holder() == "run-1"
    run.turns.give_back()


def test_on_another_machine_than_the_one_that_is_meant_nothing_is_written(tmp_path: Path) -> None:
    stranger = Shell("node2", tmp_path / "node2", machine="1" * 32)
    run = Run(stranger)
    run.turns.look({"q"})
    run.take()
    assert "not the machine" in run.notes[0]
    assert not (stranger.folder / "var").exists()


def test_a_turn_is_renewed_while_it_lasts(router: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_lock, "RENEWAL", 0.05)
    run = Run(router)
    run.take()
    router.hold(ME, age=100)
    until_true(lambda: time.time() - router.lock.stat().st_mtime < 50)
    run.turns.give_back()


@pytest.mark.parametrize(
    ("other", "now"), [(OTHER, r"eve \(pid 17\), run run-2 holds it now"), (None, "it could not be renewed for too long")]
)
def test_a_turn_that_somebody_else_took_is_noticed(
    other: LockOwner | None, now: str, router: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_lock, "RENEWAL", 0.05)
    run = Run(router)
    run.take("r", "q")
    run.turns.check()

    def noticed() -> bool:
        # Again each time: a renewal that is at work may put ours back.
        if other is None:
            router.lock.unlink(missing_ok=True)
        elif router.holder() != other.run:
            router.hold(other)
        return bool(fails(run.turns.check))

    until_true(noticed)
    with pytest.raises(StateFailed, match=rf"the lock of pool q was taken over by another run \({now}\)"):
        raise fails(run.turns.check) or AssertionError
    run.turns.give_back()
    assert router.holder() == ("run-2" if other else "")
    run.turns.check()


def test_a_run_that_was_cut_off_from_its_turn_connects_again_and_hears_who_has_it(
    router: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_lock, "RENEWAL", 0.05)
    run = Run(router)
    run.take()
    run.fails, router.lost = True, True
    until_true(lambda: run.connected > 2)
    run.turns.check()
    run.router, run.fails = Shell("node2", router.folder), False
    until_true(lambda: "renew the lock" in run.router.ran)
    run.turns.check()
    router.hold(OTHER)
    until_true(lambda: fails(run.turns.check))
    run.turns.give_back()
    assert router.holder() == "run-2"


def test_a_renewal_that_the_disk_refuses_is_no_loss(router: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_lock, "RENEWAL", 0.05)
    monkeypatch.setattr(router, "refused", "touch() { false; }\n")
    run = Run(router)
    run.take()
    until_true(lambda: router.ran.count("renew the lock") > 1)
    run.turns.check()
    run.turns.give_back()


def test_a_pool_without_a_router_has_no_lock(router: Shell) -> None:
    run = Run(router)
    run.take("s")
    run.turns.give_back()
    assert (router.ran, run.notes) == ([], [])


def test_a_pools_lock_is_on_the_host_of_its_router_and_not_of_its_standby() -> None:
    fleet = inventory.load(CODE / "hosts")
    standby = inventory.Router(pool="qwen38", port=30002, prometheus_port=29000, standby=True)
    hosts = {**fleet.hosts, "node1": fleet.hosts["node1"].model_copy(update={"router": standby})}
    both = fleet.model_copy(update={"hosts": hosts})
    assert [router_hosts(one)["qwen38"].name for one in (fleet, both)] == ["node2", "node2"]
    assert "another" not in router_hosts(fleet)
