"""GPUs given back: what is recorded and said, until when, what a run then asks of the worker, and what brings it back."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodger.engines.pool import PoolMember, RouterEntry
from lodger.host import paths
from lodger.host.ownership import Owner
from lodger.locks import host_lock
from lodger.release import pauses
from lodger.release.pauses import Pause
from lodger.states.pool_place import PoolKey, PoolPlace
from lodger.states.worker_pause import AutoResume
from tests.unit.readings import HOST
from tests.unit.release.support_resume import Stage
from tests.unit.states.support_pauses import PLACES, TODAY, WAY, A


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., tuple[Stage, subprocess.Popen[str]]]]:
    processes: list[subprocess.Popen[str]] = []

    def begin(
        way: AutoResume = WAY, prepare: Callable[[Stage], None] = lambda _: None, **options: str
    ) -> tuple[Stage, subprocess.Popen[str]]:
        made = Stage(tmp_path, way, **options)
        prepare(made)
        processes.append(made.start())
        return made, processes[-1]

    yield begin
    for one in processes:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


def until_true(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_with_nobody_on_the_gpus_the_worker_is_started_joins_and_nothing_is_left(stage: Any, tmp_path: Path) -> None:
    entry, key = RouterEntry("http://router:30002", "http://me:30000"), tmp_path / "k"
    key.touch()
    made, run = stage(AutoResume(HOST, PoolPlace("http://me:30000", (entry,), (), PoolKey(str(key))), ()))
    out, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, "")
    log = made.log.read_text()
    assert "systemctl start --no-block lodger-worker-a.service" in log
    assert "http://router:30002/workers" in log
    assert f"-H @{key}" in log
    assert log.index("start --no-block") < log.index("http://router:30002/workers")
    assert "serves again" in out
    left = [path for path in made.root.rglob("*lodger*") if path.is_file() and "bin" not in path.parts]
    assert left == []
    assert not made.lock.exists()


def test_before_its_time_it_only_looks(stage: Any) -> None:
    made, run = stage(until="2999-01-01 00:00")
    run.communicate(timeout=60)
    assert run.returncode == 0
    assert made.record.exists()
    assert made.log.read_text() == ""


def test_it_waits_for_whoever_is_on_the_gpus_and_says_for_whom(stage: Any) -> None:
    nasty = 'python3 "$(reboot)" `id` \\ \x1b[31m {"a": 1}'
    made, run = stage(prepare=lambda one: one.holder(4711, nasty, gpu=3))
    until_true(made.waits)
    said = made.waits()
    assert said.startswith("pid 4711 of user ")
    assert "\x1b" not in said
    json.loads(made.record.read_text())
    assert said in made.motd.read_text()
    assert made.motd.read_text() == replace(made.pause, waits_for=said).motd
    time.sleep(0.6)
    assert made.log.read_text() == "", "nothing is started"
    made.gone(4711)
    out, _ = run.communicate(timeout=60)
    assert out.count("waits for") == 1, "said once, however often it looked"
    assert "start --no-block" in made.log.read_text()


@pytest.mark.parametrize(("others", "stays"), [([], False), (["10-news"], True), (["lodger-worker-b"], True)])
def test_a_folder_for_messages_that_we_made_goes_with_the_last_of_them(others: list[str], stays: bool, tmp_path: Path) -> None:
    motd, mark = tmp_path / "etc/motd.d", tmp_path / "var/lib/lodger/made-motd.d"
    for folder in (motd, mark.parent):
        folder.mkdir(parents=True)
    mark.write_text("")
    for name in (PLACES.name, *others):
        (motd / name).write_text("")
    script = "systemctl() { :; }\n" + pauses.forgotten(PLACES)
    for path in ("/var/lib/lodger", "/etc/motd.d", "/etc/systemd/system"):
        script = script.replace(path, f"{tmp_path}{path}")
    assert subprocess.run(["sh", "-c", script], check=False, timeout=20).returncode == 0
    assert motd.exists() == stays
    assert mark.exists() == ("lodger-worker-b" in others), "a folder that somebody else uses is not ours any more"


def test_others_gpus_are_nobodys_business(stage: Any) -> None:
    _, run = stage(prepare=lambda one: one.holder(1, "python3 train.py", gpu=4))
    run.communicate(timeout=60)
    assert run.returncode == 0


CID = "c" * 64
OURS_SERVES = f"cid|true|host||{HOST}|c1|30000|/health"


def docker_knows(word: str) -> str:
    """Return a docker that gives the container's id to whoever asks with ``word``, and ours to everybody else."""
    return f'case "$*" in *{word}*) echo {CID};; *) echo "{OURS_SERVES}";; esac'


# Who is declared, the cgroup and parent of the process on the GPU (pid 50), and the program that knows of it with what it says.
MAY_STAY: dict[str, tuple[Owner, str, int, str, str]] = {
    "a unit": (Owner("unit", "aigc@1.service"), "/system.slice/aigc@1.service", 1, "true", ""),
    "a user's unit": (
        Owner("user-unit", "{user}:train.service"),
        "/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/train.service",
        1,
        "true",
        "",
    ),
    "a program in a group": (
        Owner("program", "images"),
        "/system.slice/supervisor.service",
        49,
        "supervisorctl",
        "echo 'images:up  RUNNING  pid 49, uptime 1'",
    ),
    "a container": (
        Owner("container", "notebook"),
        f"/system.slice/docker-{CID}.scope",
        1,
        "docker",
        docker_knows("notebook"),
    ),
    "a compose project": (Owner("compose", "captioning"), f"/docker/{CID}", 1, "docker", docker_knows("captioning")),
}


def on_stage(name: str) -> Callable[[Stage], None]:
    _, cgroup, parent, program, body = MAY_STAY[name]

    def prepare(made: Stage) -> None:
        made.holder(50, "python3 serve.py", cgroup.format(uid=os.getuid()), parent=parent)
        made.program(program, body)

    return prepare


def test_the_drivers_own_daemon_is_not_waited_for(stage: Any) -> None:
    _, run = stage(prepare=lambda one: one.holder(50, "x", "/system.slice/nvidia-persistenced.service"))
    run.communicate(timeout=60)
    assert run.returncode == 0


@pytest.mark.parametrize("name", MAY_STAY)
def test_a_neighbour_that_may_share_the_gpus_is_not_waited_for(name: str, stage: Any) -> None:
    owner = MAY_STAY[name][0]
    me = subprocess.run(["stat", "-c", "%U", "/proc/self"], capture_output=True, text=True, check=True).stdout.strip()
    _, run = stage(AutoResume(HOST, PoolPlace(), (Owner(owner.kind, owner.name.format(user=me)),)), on_stage(name))
    run.communicate(timeout=60)
    assert run.returncode == 0


@pytest.mark.parametrize("name", MAY_STAY)
def test_the_same_process_of_somebody_who_is_not_declared_is_waited_for(name: str, stage: Any) -> None:
    made, _ = stage(prepare=on_stage(name))
    until_true(made.waits)
    assert "pid 50 " in made.waits()


UNITS = (Owner("unit", "aigc.service"), Owner("user-unit", "{user}:train.service"))


@pytest.mark.parametrize(
    "cgroup",
    [
        "/user.slice/user-1000.slice/user@1000.service/app.slice/aigc.service",  # a user may call a unit anything
        f"/docker/{'a' * 64}/system.slice/aigc.service",
        "/user.slice/user-9999.slice/user@9999.service/app.slice/train.service",  # another user's
        f"/docker/{'a' * 64}/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice/train.service",
    ],
)
def test_a_unit_of_the_same_name_of_somebody_else_is_waited_for(cgroup: str, tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    made = Stage(tmp_path, AutoResume(HOST, PoolPlace(), tuple(Owner(one.kind, one.name.format(user=me)) for one in UNITS)))
    made.holder(50, "python3 serve.py", cgroup)
    assert made.others().startswith("pid 50 ")


@pytest.mark.parametrize("held", ["lock", "unfinished.json"])
def test_it_keeps_out_of_the_way_of_a_run(held: str, stage: Any) -> None:
    made, run = stage(prepare=lambda one: (one.root / "var/lib/lodger" / held).write_text("somebody"))
    until_true(made.waits)
    assert "run of Lodger" in made.waits()
    assert made.log.read_text() == ""
    (made.root / "var/lib/lodger" / held).unlink()
    run.communicate(timeout=60)
    assert "start --no-block" in made.log.read_text()


def dead(one: Stage, age: float) -> None:
    one.lock.write_text("somebody")
    os.utime(one.lock, (time.time() - age,) * 2)


def test_a_lock_that_nobody_renews_any_more_keeps_no_worker_away(stage: Any) -> None:
    """The next run of whoever left it may be days away."""
    made, run = stage(prepare=lambda one: dead(one, host_lock.TTL + 5))
    run.communicate(timeout=60)
    assert "start --no-block" in made.log.read_text()
    assert not made.lock.exists()


@pytest.mark.parametrize(("age", "ledger"), [(host_lock.TTL - 60, False), (host_lock.TTL + 5, True)])
def test_a_lock_that_is_renewed_or_has_left_a_ledger_is_waited_for(age: float, ledger: bool, stage: Any) -> None:
    def left(one: Stage) -> None:
        dead(one, age)
        if ledger:
            (one.root / "var/lib/lodger/unfinished.json").write_text("{}")

    made, _ = stage(prepare=left)
    until_true(lambda: "run of Lodger" in made.motd.read_text())
    assert made.log.read_text() == ""
    assert made.lock.read_text() == "somebody"


def test_who_takes_an_expired_lock_over_and_the_timer_never_both_have_it(stage: Any) -> None:
    """A controller with --break-lock holds the folder while it looks and writes; what it wrote is fresh to the timer."""
    eve = host_lock.LockOwner("eve", "hers", 17, 900, "elsewhere")

    def breaking(one: Stage) -> None:
        dead(one, host_lock.TTL + 5)
        seen = host_lock.Attempt(taken=False, text="somebody")
        script = host_lock.take_over(seen, eve).script.replace(paths.VAR, f"{one.root}/var/lib/lodger")
        assert subprocess.run(["sh", "-c", script], check=False, timeout=20).returncode == 0

    made, _ = stage(prepare=breaking)
    until_true(made.waits)
    assert made.log.read_text() == ""
    assert host_lock.owner_in(made.lock.read_text()) == eve


def test_a_router_that_does_not_answer_is_asked_again(stage: Any) -> None:
    def unwilling(one: Stage) -> None:
        body = f'case "$*" in *http_code*) printf 200;; *) [ -e {one.root}/router ];; esac'
        one.program("curl", body)

    made, run = stage(AutoResume(HOST, PoolPlace("", (RouterEntry("http://r:1", "http://me:1"),)), ()), unwilling)
    until_true(lambda: not made.record.exists())
    time.sleep(0.6)
    assert run.poll() is None
    (made.root / "router").write_text("")
    out, _ = run.communicate(timeout=60)
    assert out.count("http://r:1 does not take it") == 1


SAID = '"served_model_name":"q"\n"weight_version":"%s"\n"context_length":%s\n"scheduler_e2e":%s\n"http": "%s"'


@pytest.mark.parametrize(
    ("member", "stays_out"),
    [
        (SAID % ("017b", "131072", "70.5", "200"), False),
        (SAID.replace(":", ": ") % ("017b", "131072", "9.1", "200"), False),
        (SAID % ("default", "131072", "9.1", "200"), False),
        ('"http": "000"', False),
        (SAID % ("017b", "65536", "70.5", "200"), True),
        (SAID % ("9999", "131072", "70.5", "200"), True),
        ('"http": "401"', True),
    ],
)
def test_it_stays_out_of_a_pool_that_serves_something_else_meanwhile(member: str, stays_out: bool, stage: Any) -> None:
    def answers(one: Stage) -> None:
        (one.root / "member").write_text(member)
        own = SAID % ("017b", "131072", "71.6", "200") + '\n"context_length":1'
        (one.root / "own").write_text(own)
        body = f"""echo "curl $*" >> {one.log}
case "$*" in *me:1/server_info) cat {one.root}/own;; *member:1/server_info) cat {one.root}/member;; *http_code*) printf 200;; esac"""
        one.program("curl", body)

    place = PoolPlace(
        "http://me:1", (RouterEntry("http://r:1", "http://me:1"),), (PoolMember("worker a on node2", "http://member:1"),)
    )
    made, run = stage(AutoResume(HOST, place), answers)
    if stays_out:
        until_true(lambda: made.log.read_text().count("member:1/server_info") > 1)
        assert run.poll() is None
        assert "http://r:1/workers" not in made.log.read_text()
        (made.root / "member").write_text(SAID % ("017b", "131072", "70.5", "200"))
    out, err = run.communicate(timeout=60)
    assert err == ""
    assert "http://r:1/workers" in made.log.read_text()
    assert ("stays out of its pool: worker a on node2 serves something else, or asks for another key" in out) == stays_out


def test_a_worker_that_is_paused_anew_is_left_to_that_pause(stage: Any) -> None:
    made, run = stage(prepare=lambda one: one.program("curl", "exit 7"))
    until_true(lambda: not made.record.exists())
    made.record.write_text(made.pause.text)
    run.communicate(timeout=60)
    assert made.record.exists()
    assert (made.root / PLACES.way_back[2][1:]).exists(), "the timer is that pause's"


strange = st.from_regex(r"(?!lodger-)[A-Za-z0-9][A-Za-z0-9:_.@\\-]*", fullmatch=True)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["unit", "program", "container", "compose", "user-unit"]), strange), max_size=6),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
def test_whatever_the_inventory_accepts_is_text_to_the_shell(neighbours: list[tuple[str, str]], who: str) -> None:
    way = AutoResume(HOST, PoolPlace(), tuple(Owner(*one) for one in neighbours))
    script = way.files(A, Pause("a", A.gpus, who, TODAY, "2026-11-29 18:00"))[PLACES.script]
    assert "{{" not in script.replace("{{.", "").replace("{{range", "").replace("{{index", "").replace("{{end", "")
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False, timeout=20)
    assert checked.returncode == 0, checked.stderr
