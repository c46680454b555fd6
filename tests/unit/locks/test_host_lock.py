"""The lock's rules as a table, and its scripts in a real shell on a folder of the test's own."""

import dataclasses
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lodger.host import facts, paths
from lodger.locks import host_lock
from lodger.locks.host_lock import TTL, Attempt, LockOwner, Verdict

MINE = LockOwner("ops", "20261129T140000.000Z-deploy-node1", 4242, 1000, "machine-a")
# A name that a shell must not read: the scripts quote what they write and compare.
OTHER = LockOwner("eve's $HOME `id`", "run-2", 17, 900, "machine-b")


class Host:
    """A host as far as the lock goes: scripts run here, on another folder than on a host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "lodger"
        self.lock = self.folder / "lock"

    def sh(self, script: str, before: str = "") -> subprocess.CompletedProcess[str]:
        script = before + script.replace(paths.VAR, str(self.folder))
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=30)

    def attempt(self, owner: LockOwner, before: str = "") -> Attempt:
        fact = host_lock.attempt(owner)
        done = self.sh(facts.script([fact]), before)
        return facts.parse(done.stdout, "node1")[fact]

    def take_over(self, held: Attempt, owner: LockOwner) -> bool:
        return self.sh(host_lock.take_over(held, owner).script).returncode == 0

    def renew(self, owner: LockOwner) -> int:
        return self.sh(host_lock.renew(owner).script).returncode

    def release(self, owner: LockOwner) -> None:
        assert self.sh(host_lock.release_script(owner)).returncode == 0

    def age(self, seconds: float) -> None:
        moment = time.time() - seconds
        os.utime(self.lock, (moment, moment))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# ---------------------------------------------------------------- the rules


def held(owner: LockOwner | None, age: float = 1.0) -> Attempt:
    return Attempt(taken=False, owner=owner, age=age, text=owner.text() if owner else "")


EARLIER = dataclasses.replace(MINE, run="earlier", pid=99, started=500)


@pytest.mark.parametrize(
    ("what", "owner", "age", "start_of", "expected"),
    [
        ("my other run, at work", EARLIER, 1, 500, Verdict.LIVE),
        ("my other run, killed", EARLIER, 1, 0, Verdict.ORPHAN),
        ("my other run, killed long ago", EARLIER, TTL + 1, 0, Verdict.ORPHAN),
        ("my other run, killed, its pid used again", EARLIER, 1, 501, Verdict.ORPHAN),
        ("my other run, alive and hanging", EARLIER, TTL + 1, 500, Verdict.EXPIRED),
        ("my other run, no start time to be had here", EARLIER, 1, -1, Verdict.LIVE),
        ("a colleague on this machine, pid gone", dataclasses.replace(EARLIER, user="bob"), 1, 0, Verdict.LIVE),
        ("a colleague on this machine, silent", dataclasses.replace(EARLIER, user="bob"), TTL + 1, 0, Verdict.EXPIRED),
        ("me on another machine, pid unknown here", dataclasses.replace(EARLIER, machine="b"), 1, 0, Verdict.LIVE),
        ("me on another machine, silent", dataclasses.replace(EARLIER, machine="b"), TTL + 1, 0, Verdict.EXPIRED),
        ("at the limit", OTHER, TTL, 0, Verdict.LIVE),
        ("nobody's name in it", None, 1, 0, Verdict.LIVE),
        ("nobody's name in it, old", None, TTL + 1, 0, Verdict.EXPIRED),
        ("renewed in the future, by a clock that is ahead", OTHER, -3600, 0, Verdict.LIVE),
    ],
)
def test_what_may_be_done_about_a_held_lock(
    what: str, owner: LockOwner | None, age: float, start_of: int, expected: Verdict
) -> None:
    assert host_lock.judge(held(owner, age), MINE, start_of) is expected


def test_a_lock_is_renewed_often_enough_before_it_expires() -> None:
    assert host_lock.RENEWAL * 3 <= TTL


def test_this_process_is_known_by_its_start_time() -> None:
    me = host_lock.me("ops", "run")
    assert (me.pid, me.started) == (os.getpid(), host_lock.process_start(os.getpid()))
    assert me.started > 0
    assert me.machine == host_lock.this_machine() != ""


def test_a_process_that_ended_has_no_start_time_and_a_later_one_another() -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        begun = host_lock.process_start(first.pid)
        first.kill()
        first.wait()
        assert begun >= host_lock.process_start(os.getpid()) > 0
        assert host_lock.process_start(first.pid) == 0


def test_a_process_name_with_brackets_does_not_shift_the_start_time(tmp_path: Path) -> None:
    program = tmp_path / ") S 1 (x y"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "60"]) as odd:
        try:
            deadline = time.monotonic() + 10
            while Path(f"/proc/{odd.pid}/comm").read_text().strip() != program.name and time.monotonic() < deadline:
                time.sleep(0.01)
            assert host_lock.process_start(odd.pid) >= host_lock.process_start(os.getpid())
        finally:
            odd.kill()


# ---------------------------------------------------------------- the scripts


def test_the_first_takes_the_lock_and_the_second_sees_who_has_it(host: Host) -> None:
    assert host.attempt(OTHER).taken
    seen = host.attempt(MINE)
    assert (seen.taken, seen.owner, seen.failure) == (False, OTHER, "")
    assert 0 <= seen.age < 60
    assert seen.text == OTHER.text()


def test_whoever_has_the_lock_is_told_so_again(host: Host) -> None:
    assert host.attempt(MINE).taken
    assert host.attempt(MINE).taken


def test_of_many_at_once_exactly_one_takes_the_lock(host: Host) -> None:
    rivals = [dataclasses.replace(MINE, run=f"run-{number}") for number in range(12)]
    with ThreadPoolExecutor(len(rivals)) as pool:
        outcomes = list(pool.map(host.attempt, rivals))
    winners = [rival for rival, outcome in zip(rivals, outcomes, strict=True) if outcome.taken]
    assert len(winners) == 1
    assert {outcome.owner for outcome in outcomes if not outcome.taken} == {winners[0]}
    assert [path.name for path in host.folder.iterdir()] == ["lock"]


def test_age_counts_from_the_last_renewal(host: Host) -> None:
    assert host.attempt(OTHER).taken
    host.age(500)
    assert 495 < host.attempt(MINE).age < 560
    assert host.renew(OTHER) == 0
    assert host.attempt(MINE).age < 60


def test_only_the_owner_renews(host: Host) -> None:
    assert host.renew(MINE) == 1
    assert host.attempt(OTHER).taken
    host.age(500)
    refused = host.sh(host_lock.renew(MINE).script)
    assert (refused.returncode, host_lock.owner_in(refused.stdout)) == (1, OTHER)
    assert host.attempt(MINE).age > 400


def test_release_leaves_nothing_behind(host: Host) -> None:
    assert host.attempt(MINE).taken
    host.release(MINE)
    assert not host.folder.exists()
    host.release(MINE)


def test_release_keeps_what_else_is_in_the_folder(host: Host) -> None:
    assert host.attempt(MINE).taken
    (host.folder / "unfinished.json").write_text("{}")
    host.release(MINE)
    assert [path.name for path in host.folder.iterdir()] == ["unfinished.json"]


def test_nobody_gives_back_the_lock_of_another(host: Host) -> None:
    assert host.attempt(OTHER).taken
    host.release(MINE)
    assert host.attempt(MINE).owner == OTHER


def test_taking_over_replaces_the_lock_that_was_seen(host: Host) -> None:
    assert host.attempt(OTHER).taken
    host.age(500)
    assert host.take_over(host.attempt(MINE), MINE)
    assert host.attempt(MINE).taken
    assert host.renew(OTHER) == 1
    assert time.time() - host.lock.stat().st_mtime < 60
    assert [path.name for path in host.folder.iterdir()] == ["lock"]


def test_of_many_that_take_over_exactly_one_wins(host: Host) -> None:
    for turn in range(4):
        assert host.attempt(OTHER).taken
        seen = host.attempt(MINE)
        rivals = [dataclasses.replace(MINE, run=f"run-{turn}-{number}", pid=number) for number in range(8)]
        with ThreadPoolExecutor(len(rivals)) as pool:
            outcomes = list(pool.map(lambda rival, seen=seen: host.take_over(seen, rival), rivals))
        winner = host.attempt(MINE).owner
        assert [rival for rival, won in zip(rivals, outcomes, strict=True) if won] == [winner]
        assert winner is not None
        host.release(winner)


def test_taking_over_at_the_same_time_as_others_try_leaves_one_owner(host: Host) -> None:
    assert host.attempt(OTHER).taken
    seen = host.attempt(MINE)
    rivals = [dataclasses.replace(MINE, run=f"run-{number}", pid=number) for number in range(8)]

    def rush(rival: LockOwner) -> bool:
        return host.take_over(seen, rival) if rival.pid % 2 else host.attempt(rival).taken

    with ThreadPoolExecutor(len(rivals)) as pool:
        won = [rival for rival, outcome in zip(rivals, pool.map(rush, rivals), strict=True) if outcome]
    assert len(won) == 1
    assert host.attempt(MINE).owner == won[0]


def test_a_lock_that_changed_or_went_away_since_is_not_taken_over(host: Host) -> None:
    assert host.attempt(OTHER).taken
    seen = host.attempt(MINE)
    host.release(OTHER)
    assert not host.take_over(seen, MINE)
    assert not host.lock.exists()
    newcomer = dataclasses.replace(OTHER, run="newcomer")
    assert host.attempt(newcomer).taken
    assert not host.take_over(seen, MINE)
    assert host.attempt(MINE).owner == newcomer


@pytest.mark.parametrize("content", ["", "\n", "not json", '{"user": "x"}', "[1]"])
def test_a_lock_that_nobody_can_read_is_held_until_it_expires_and_can_be_broken_then(host: Host, content: str) -> None:
    host.folder.mkdir()
    host.lock.write_text(content)
    host.age(TTL + 60)
    seen = host.attempt(MINE)
    assert (seen.taken, seen.owner, seen.failure) == (False, None, "")
    assert host_lock.judge(seen, MINE, 0) is Verdict.EXPIRED
    assert host.take_over(seen, MINE)
    assert host.attempt(MINE).taken


# Makes writing fail as a full disk does: a file may be created and holds nothing. Pipes are not counted.
FULL = "trap '' XFSZ; ulimit -f 0; "


def test_a_full_disk_leaves_no_empty_lock_behind(host: Host) -> None:
    host.folder.mkdir()
    fact = host_lock.attempt(MINE)
    seen = fact.parse(host.sh(f"({fact.snippet})", FULL).stdout)
    assert (seen.taken, seen.owner) == (False, None)
    assert seen.failure
    assert list(host.folder.iterdir()) == []
    assert host.attempt(MINE).taken


def test_a_folder_that_cannot_be_made_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "lodger").write_text("a file where the folder should be")
    seen = Host(tmp_path).attempt(MINE)
    assert not seen.taken
    assert "File exists" in seen.failure or "Not a directory" in seen.failure


def test_a_crash_while_the_lock_was_written_does_not_stop_the_next(host: Host) -> None:
    host.folder.mkdir()
    (host.folder / "lock.new").write_text("half a li")
    assert host.attempt(MINE).taken
    assert [path.name for path in host.folder.iterdir()] == ["lock"]
