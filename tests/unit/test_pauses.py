"""GPUs given back: what is recorded and said, until when, what a run then asks of the worker, and what brings it back."""

from __future__ import annotations

import json
import os
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

from lodger import inventory
from lodger.engines.sglang.router_api import PoolMember, RouterEntry
from lodger.errors import Refused, UsageError
from lodger.host import facts, paths
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import HostFile
from lodger.host.ownership import Owner
from lodger.inventory import Fleet
from lodger.locks import host_lock
from lodger.plans import operate, runbook
from lodger.plans.runbook import names
from lodger.release import pauses
from lodger.release.pauses import Pause
from lodger.release.render import render
from lodger.run.ledger import Ledger
from lodger.states.base import NoUndo
from lodger.states.gpus_waited_for import GpusWaitedFor
from lodger.states.pool_place import PoolKey, PoolPlace
from lodger.states.service_base import pause_places
from lodger.states.service_gone import ServiceGone
from lodger.states.service_ready import ServiceReady
from lodger.states.worker_pause import AutoResume
from lodger.states.worker_paused import WorkerPaused
from lodger.states.worker_still_paused import WorkerStillPaused
from lodger.states.worker_unpaused import WorkerUnpaused
from tests.unit.readings import (
    HOST,
    base,
    deployed,
    driver,
    installed,
    on_gpus,
    ours,
    process,
    readings,
    record,
    unit,
    worker,
)

HOSTS = Path(__file__).parents[2] / "hosts"
TODAY = "2026-11-29 13:57"
A = worker("a")
PLACES = pause_places(A)
CONDITION = "ConditionPathExists=!/var/lib/lodger/paused/lodger-worker-a"
WAY = AutoResume(HOST, PoolPlace(), ())


# ---------------------------------------------------------------- until


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("18:00", "2026-11-29 18:00"),
        ("13:58", "2026-11-29 13:58"),
        ("2026-11-30 06:00", "2026-11-30 06:00"),
        ("2026-12-01 9:05", "2026-12-01 09:05"),
    ],
)
def test_a_time_is_taken_by_the_hosts_clock(said: str, meant: str) -> None:
    assert pauses.resolve(said, TODAY) == meant


@pytest.mark.parametrize("said", ["13:57", "06:00", "2026-11-28 23:59"])
def test_a_time_that_is_past_is_refused_and_the_hint_says_how_to_write_another_day(said: str) -> None:
    with pytest.raises(Refused) as caught:
        pauses.resolve(said, TODAY)
    assert TODAY in caught.value.cause
    assert "YYYY-MM-DD" in caught.value.hint


@pytest.mark.parametrize(
    "said",
    [
        "",
        "six",
        "24:00",
        "18:60",
        "18",
        "18:00:00",
        "2026-02-30 10:00",
        "2026-1-30 10:00",
        "tomorrow 10:00",
        "\N{ARABIC-INDIC DIGIT ONE}8:00",
    ],
)
def test_what_is_no_time_is_bad_usage(said: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        pauses.check(said)


def test_the_hosts_clock_is_read_or_is_unreadable() -> None:
    assert pauses.NOW.parse(f"{TODAY}\n") == TODAY
    with pytest.raises(ValueError, match="does not match"):
        pauses.NOW.parse("no clock\n")


# ---------------------------------------------------------------- record and message


@given(st.text(max_size=20), st.text(max_size=40))
def test_a_record_says_the_same_when_it_is_read_again(who: str, waits: str) -> None:
    pause = Pause("a", (0, 1), who, TODAY, "2026-11-29 18:00", waits)
    assert Pause.load("a", pause.text) == pause


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"gpus": 3}'])
def test_a_record_that_nobody_can_read_is_a_pause_all_the_same(text: str) -> None:
    there = deployed(files=record("paused/lodger-worker-a", text))
    assert pauses.paused(there) == {"worker-a": Pause("a")}


def test_what_is_being_written_beside_a_record_is_none() -> None:
    assert pauses.paused(deployed(files=record("paused/lodger-worker-a.new", ""))) == {}


def test_the_message_names_gpus_end_worker_and_who_to_tell() -> None:
    said = Pause("a", (0, 1, 2, 3), "wang", TODAY, "2026-11-29 18:00").motd
    assert said.startswith("GPUs 0 1 2 3 are free until 2026-11-29 18:00: Lodger's worker a is paused by wang.\n")
    assert "tell wang" in said
    assert Pause("a", (5,), "wang", TODAY).motd.startswith("GPU 5 is free: ")


# ---------------------------------------------------------------- states


def stands(pause: Pause | None, *, way: AutoResume = WAY, condition: str = CONDITION) -> Facts:
    """Return a host on which worker a is deployed and, with ``pause``, given back."""
    files = installed("r1", A)
    text = f"# io.lodger.host={HOST}\n[Unit]\n{condition}\n"
    files |= {f"/etc/systemd/system/{A.unit}": HostFile(text, 0o644, "root")}
    timer = None
    if pause is not None:
        files |= record("paused/lodger-worker-a", pause.text)
        made = way.files(A, pauses.renewed(pause))
        files |= {path: HostFile(content, 0o644, "root") for path, content in made.items()}
        timer = unit(PLACES.timer) if made else None
    state = WorkerUnpaused(A)
    values: dict[facts.Fact[Any], Any] = {
        state._motd: pause.motd if pause else "",
        state._timer: timer,
        pauses.NOW: TODAY,
        **base(deployed=deployed(("r1",), links={"worker-a": "r1"}, files=files)),
    }
    return readings(values)


UNTIL = Pause("a", A.gpus, "wang", TODAY, "2026-11-29 18:00")


def paused_state(until: str = "") -> WorkerPaused:
    return WorkerPaused(A, "wang", until, WAY)


def test_a_pause_writes_record_message_and_with_a_time_the_timer() -> None:
    read = stands(None)
    with_end = [str(command) for command in paused_state("2026-11-29 18:00").act(read)]
    endless = [str(command) for command in paused_state().act(read)]
    assert paused_state().missing(read)
    for path in (PLACES.record, PLACES.motd):
        assert any(path in command for command in with_end)
        assert any(path in command for command in endless)
    assert any(f"systemctl restart {PLACES.timer}" in command for command in with_end)
    assert not any("timer" in command for command in endless)


@pytest.mark.parametrize("pause", [UNTIL, replace(UNTIL, until=""), replace(UNTIL, waits_for="pid 7 of user bob (train)")])
def test_what_is_paused_already_is_satisfied_whoever_asks(pause: Pause) -> None:
    assert WorkerPaused(A, "li", "", WAY).missing(stands(pause)) == ""
    assert WorkerPaused(A, "li", pause.until, WAY).missing(stands(pause)) == ""


def test_another_end_is_another_pause() -> None:
    assert "2026-11-29 20:00" in WorkerPaused(A, "li", "2026-11-29 20:00", WAY).missing(stands(UNTIL))


@pytest.mark.parametrize("lacking", ["motd", "script", "timer"])
def test_a_pause_that_says_half_of_it_is_not_complete(lacking: str) -> None:
    read, state = stands(UNTIL), paused_state()
    if lacking == "motd":
        read._parsed[state._motd.name] = ""
    if lacking == "timer":
        read._parsed[state._timer.name] = None
    if lacking == "script":
        read[facts.DEPLOYED].files.pop(PLACES.script)  # type: ignore[attr-defined]  # a dict behind a read-only face
    assert state.missing(read)


def test_a_unit_that_knows_no_pauses_is_refused_before_anything_is_stopped() -> None:
    assert paused_state().blockers(stands(None)) == []
    (blocker,) = paused_state().blockers(stands(None, condition=""))
    assert not blocker.awaits
    assert "deploy first" in blocker.hint


def test_the_undo_of_a_pause_and_of_its_end_put_back_what_was_there() -> None:
    nothing, there = stands(None), stands(UNTIL)
    (forget,) = paused_state().undo(nothing, there)  # type: ignore[misc]  # it is no NoUndo
    assert PLACES.record in forget.script
    back = WorkerUnpaused(A).undo(there, nothing)
    assert not isinstance(back, NoUndo)
    assert {command.stdin for command in back} >= {UNTIL.text.encode(), UNTIL.motd.encode()}
    assert isinstance(paused_state().undo(there, there), NoUndo)
    assert WorkerUnpaused(A).undone(there, nothing)
    assert not WorkerUnpaused(A).undone(there, there)


def test_the_end_of_a_pause_leaves_nothing_of_it() -> None:
    state = WorkerUnpaused(A)
    assert state.missing(stands(None)) == ""
    assert "paused by wang until 2026-11-29 18:00" in state.missing(stands(UNTIL))
    (command,) = state.act(stands(UNTIL))
    for path in (PLACES.record, PLACES.motd, *PLACES.way_back):
        assert path in command.script


def test_a_worker_that_is_to_stay_paused_is_found_so_and_never_made_so() -> None:
    state = WorkerStillPaused(A, WAY)
    for pause in (UNTIL, replace(UNTIL, until=""), replace(UNTIL, waits_for="pid 7"), Pause("a")):
        assert state.missing(stands(pause)) == ""
    assert state.act(stands(None)) == []
    assert state.missing(stands(None)) == state.hopeless(stands(None)) == "worker a was resumed meanwhile"
    assert isinstance(state.undo(stands(UNTIL), stands(None)), NoUndo), "it is not paused again by an undo"


@pytest.mark.parametrize(
    ("service", "way"),
    [
        (replace(A, port=30009), AutoResume(HOST, PoolPlace("", (RouterEntry("http://r:1", "http://me:30009"),)))),
        (A, AutoResume(HOST, PoolPlace("", (RouterEntry("http://another:1", "http://me:30000"),)))),
        (A, AutoResume(HOST, PoolPlace(), (Owner("container", "aigc"),))),
        (replace(A, start=1800.0), WAY),
    ],
)
def test_what_brings_it_back_brings_back_what_is_deployed_meanwhile(service: Any, way: AutoResume) -> None:
    read, state = stands(UNTIL), WorkerStillPaused(service, way)
    assert state.missing(read) == f"{PLACES.script} would not bring back what is deployed now"
    assert state.hopeless(read) == ""
    made = way.files(service, UNTIL)
    commands = state.act(read)
    assert [command.stdin for command in commands[:-1]] == [text.encode() for text in made.values()]
    assert f"systemctl restart {PLACES.timer}" in commands[-1].script
    files = {path: HostFile(text, 0o644, "root") for path, text in made.items()}
    done = readings(base(deployed=replace(read[facts.DEPLOYED], files={**read[facts.DEPLOYED].files, **files})))
    assert state.missing(done) == ""
    back = state.undo(read, done)
    assert not isinstance(back, NoUndo)
    assert WAY.files(A, UNTIL)[PLACES.script].encode() in {command.stdin for command in back}
    assert WorkerStillPaused(service, way).missing(stands(replace(UNTIL, until=""))) == "", (
        "without an end nothing brings it back"
    )


def test_the_gpus_that_it_takes_back_are_the_ones_that_people_read() -> None:
    state = WorkerStillPaused(replace(A, gpus=(4, 5)), WAY)
    assert state.missing(stands(UNTIL)) == "the record of its pause names GPUs 0 1 2 3"
    said = [command.stdin for command in state.act(stands(UNTIL))]
    assert replace(UNTIL, gpus=(4, 5)).motd.encode() in said


def test_a_worker_that_goes_takes_its_pause_along_and_its_undo_brings_both_back() -> None:
    state = ServiceGone(A, HOST)
    left = record("paused/lodger-worker-a", UNTIL.text)
    assert "pause" in state.missing(readings(base(deployed=deployed(files=left))))
    assert any(PLACES.record in command.script for command in state.act(stands(UNTIL)))
    back = state.undo(stands(UNTIL), stands(None))
    assert not isinstance(back, NoUndo)
    assert UNTIL.text.encode() in {command.stdin for command in back}


def test_undoing_a_resume_stops_a_worker_that_was_down_although_its_container_was_still_there() -> None:
    left = ours(A, status="exited")
    state = ServiceReady(A, HOST)
    down = readings({**base(containers=[left]), facts.unit_fact(A.unit): unit(A.unit, active="inactive")})
    up = readings({**base(containers=[ours(A)]), facts.unit_fact(A.unit): unit(A.unit)})
    assert not isinstance(state.undo(down, up), NoUndo)
    assert isinstance(state.undo(up, up), NoUndo)


def test_those_who_are_waited_for_are_named_and_do_not_refuse() -> None:
    stranger = process(4711, user="bob", command="python3 train.py", devices=on_gpus(2))
    read = readings({**base(processes=[stranger]), facts.DRIVER: driver(0, 0, 900, 0), facts.unit_fact(A.unit): None})
    state = GpusWaitedFor(A, HOST, neighbours={}, replaced=[], patience=300)
    assert state.blockers(read) == []
    assert state.missing(read)
    assert "pid 4711 of user bob" in state.progress(read)
    assert state.deadline == 300


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    found = inventory.load(HOSTS)
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in found.images.items()}
    return found.model_copy(update={"images": images})


def asked(plan: Any, read: Facts) -> list[str]:
    steps, _ = plan.build(read, None)
    return [name for name in names(steps) if name.endswith(("(a)", "(worker-a)"))]


LEFT_ALONE = ["service_installed(worker-a)", "worker_paused(a)"]


def test_a_deploy_and_a_rollback_ask_nothing_of_a_paused_worker_but_its_files(fleet: Fleet) -> None:
    read = stands(UNTIL)
    deploy = operate.deploy(fleet, fleet.hosts["node1"], runbook.load("deploy"), revision="r1", contained=lambda _: True)
    assert asked(deploy, read) == LEFT_ALONE
    (line,) = deploy.remarks(read)
    assert line.startswith("worker a is paused by wang until 2026-11-29 18:00: it stays so")
    assert "worker_ready(a)" in asked(deploy, stands(None))
    assert deploy.remarks(stands(None)) == []


def test_a_rollback_leaves_it_paused_unless_the_earlier_unit_would_start_it(fleet: Fleet) -> None:
    def standing(condition: str) -> Facts:
        files = installed("r1", A) | installed("r2", A) | record("paused/lodger-worker-a", UNTIL.text)
        files["/opt/lodger/releases/r1/units/lodger-worker-a.service"] = HostFile(f"[Unit]\n{condition}\n", 0o644, "root")
        return readings(base(deployed=deployed(("r1", "r2"), links={"worker-a": "r2"}, files=files)))

    plan = operate.rollback(fleet, fleet.hosts["node1"], runbook.load("rollback"))
    assert asked(plan, standing(CONDITION)) == LEFT_ALONE
    with pytest.raises(Refused, match="next boot"):
        plan.build(standing(""), None)


@pytest.mark.parametrize("name", ["reboot", "driver-upgrade"])
def test_a_reboot_and_a_driver_upgrade_say_once_that_it_stays_paused(name: str, fleet: Fleet) -> None:
    plan = operate.maintenance(fleet, fleet.hosts["node1"], runbook.load(name), now=True)
    read = stands(UNTIL)
    assert asked(plan, read) == ["worker_paused(a)"]
    assert plan.remarks(read)


def test_a_plan_shows_no_difference_for_what_a_pause_left(fleet: Fleet) -> None:
    shown = operate.difference(stands(UNTIL)[facts.DEPLOYED], render(fleet, fleet.hosts["node1"]))
    assert "resume" not in shown


def test_a_pause_and_a_resume_are_lists_of_states(fleet: Fleet) -> None:
    node1 = fleet.hosts["node1"]
    read = stands(None)
    pause = operate.pause(fleet, node1, runbook.load("pause"), "a", who="wang", until="18:00")
    assert asked(pause, read) == ["worker_leaving(a)", "service_stopped(worker-a)", "worker_paused(a)"]
    resume = operate.resume(fleet, node1, runbook.load("resume"), "a")
    assert asked(resume, read) == [
        "gpus_free(worker-a)",
        "worker_unpaused(a)",
        "worker_ready(a)",
        "smoke_passed(a)",
        "worker_joined(a)",
    ]


def test_a_worker_that_is_not_there_is_bad_usage_or_a_refusal(fleet: Fleet) -> None:
    node1, book = fleet.hosts["node1"], runbook.load("pause")
    with pytest.raises(UsageError, match="has no worker z"):
        operate.pause(fleet, node1, book, "z", who="wang")
    with pytest.raises(UsageError, match="is no time"):
        operate.pause(fleet, node1, book, "a", who="wang", until="soon")
    with pytest.raises(Refused, match="is past"):
        operate.pause(fleet, node1, book, "a", who="wang", until="10:00").build(stands(None), None)
    with pytest.raises(Refused, match="not deployed"):
        operate.resume(fleet, node1, runbook.load("resume"), "a").build(readings(base()), None)


def test_an_unfinished_pause_of_another_worker_is_ended_first(fleet: Fleet) -> None:
    node2 = fleet.hosts["node2"]
    plan = operate.pause(fleet, node2, runbook.load("pause"), "a", who="wang")
    with pytest.raises(Refused, match="did not finish"):
        plan.build(stands(None), Ledger("r", "pause", {"worker": "b"}, "wang", "{}"))


@pytest.mark.parametrize(("others", "told"), [({}, True), ({"http://else:1": True}, False), ({"http://else:1": False}, True)])
def test_pausing_the_only_worker_says_that_the_pool_answers_nothing(others: dict[str, bool], told: bool, fleet: Fleet) -> None:
    node2 = fleet.hosts["node2"]
    plan = operate.pause(fleet, node2, runbook.load("pause"), "a", who="wang")
    files = installed("r1", replace(A, pool="qwen38"))
    place = operate.place(fleet, node2, replace(A, pool="qwen38"))
    (seat,) = place.seats
    read = readings(
        {
            **base(deployed=deployed(("r1",), links={"worker-a": "r1"}, files=files)),
            place.rotation: {seat.router: {seat.worker: True, **others}},
            place.identities: {},
        }
    )
    assert bool(plan.remarks(read)) == told


# ---------------------------------------------------------------- the way back: the rendered script, run by a real shell


class Stage:
    """A host in a folder: /proc, /var/lib/lodger and the programs that the script calls; what they were told is in ``log``."""

    def __init__(self, folder: Path, way: AutoResume, *, until: str = "2020-01-01 00:00") -> None:
        self.root = folder
        for name in ("proc", "bin", "var/lib/lodger/paused", "var/lib/lodger/returns", "etc/motd.d", "etc/systemd/system"):
            (folder / name).mkdir(parents=True)
        self.record, self.motd = folder / PLACES.record[1:], folder / PLACES.motd[1:]
        self.lock, self.log = folder / "var/lib/lodger/lock", folder / "log"
        self.pause = Pause("a", A.gpus, "wang", TODAY, until)
        files = way.files(A, self.pause)
        script = files[PLACES.script]
        for path in ("/proc/", "/var/lib/lodger", "/etc/motd.d", "/etc/systemd/system"):
            script = script.replace(path, f"{folder}{path}")
        (folder / "script").write_text(
            script.replace("sleep 60", "sleep 0.2").replace("pause=60", "pause=0.2").replace("pause=5", "pause=0.2")
        )
        self.record.write_text(self.pause.text)
        self.motd.write_text(self.pause.motd)
        for path in PLACES.way_back:
            (folder / path[1:]).write_text("")
        self.log.write_text("")
        self.program("systemctl", f'echo "systemctl $*" >> {self.log}')
        self.program("curl", f'echo "curl $*" >> {self.log}; case "$*" in *http_code*) printf 200;; esac')
        self.program(
            "docker", 'case "$*" in *RestartCount*|*State.Running*) echo "cid|true|host||$HOST_NAME|c1|30000|/health";; esac'
        )
        self.program("supervisorctl", "exit 0")
        self.program("journalctl", "exit 0")

    def program(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def holder(self, pid: int, command: str, cgroup: str = "/user.slice", gpu: int = 0, parent: int = 1) -> None:
        proc = self.root / "proc" / str(pid)
        (proc / "fd").mkdir(parents=True)
        (proc / "fd/3").symlink_to(f"/dev/nvidia{gpu}")
        (proc / "cmdline").write_text(command.replace(" ", "\0"))
        (proc / "cgroup").write_text(f"0::{cgroup}\n")
        (proc / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")

    def gone(self, pid: int) -> None:
        (self.root / "proc" / str(pid) / "fd/3").unlink()

    def start(self) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "HOST_NAME": HOST}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["sh", str(self.root / "script")], env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def waits(self) -> str:
        return Pause.load("a", self.record.read_text()).waits_for if self.record.exists() else ""


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
    seat, key = RouterEntry("http://router:30002", "http://me:30000"), tmp_path / "k"
    key.touch()
    made, run = stage(AutoResume(HOST, PoolPlace("http://me:30000", (seat,), (), PoolKey(str(key))), ()))
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
        "/user.slice/user-1.slice/user@1.service/app.slice/train.service",
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
        made.holder(50, "python3 serve.py", cgroup, parent=parent)
        made.program(program, body)

    return prepare


def test_the_drivers_own_daemon_is_not_waited_for(stage: Any) -> None:
    _, run = stage(prepare=lambda one: one.holder(50, "/usr/bin/nvidia-persistenced --user x"))
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
    until_true(made.waits)
    assert "run of Lodger" in made.motd.read_text()
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
    ("mate", "stays_out"),
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
def test_it_stays_out_of_a_pool_that_serves_something_else_meanwhile(mate: str, stays_out: bool, stage: Any) -> None:
    def answers(one: Stage) -> None:
        (one.root / "mate").write_text(mate)
        own = SAID % ("017b", "131072", "71.6", "200") + '\n"context_length":1'
        (one.root / "own").write_text(own)
        body = f"""echo "curl $*" >> {one.log}
case "$*" in *me:1/server_info) cat {one.root}/own;; *mate:1/server_info) cat {one.root}/mate;; *http_code*) printf 200;; esac"""
        one.program("curl", body)

    place = PoolPlace(
        "http://me:1", (RouterEntry("http://r:1", "http://me:1"),), (PoolMember("worker a on node2", "http://mate:1"),)
    )
    made, run = stage(AutoResume(HOST, place), answers)
    if stays_out:
        until_true(lambda: made.log.read_text().count("mate:1/server_info") > 1)
        assert run.poll() is None
        assert "http://r:1/workers" not in made.log.read_text()
        (made.root / "mate").write_text(SAID % ("017b", "131072", "70.5", "200"))
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
