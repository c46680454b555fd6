"""GPUs given back: what is recorded and said, until when, what a run then asks of the worker, and what brings it back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lodger.engines.pool import RouterEntry
from lodger.host import facts
from lodger.host.facts.deployed import HostFile
from lodger.host.ownership import Owner
from lodger.release.pauses import Pause
from lodger.states.base import NoUndo
from lodger.states.gpus_free import GpusWaitedFor
from lodger.states.pool_place import PoolPlace
from lodger.states.service_gone import ServiceGone
from lodger.states.service_ready import ServiceReady
from lodger.states.worker_pause import AutoResume
from lodger.states.worker_paused import WorkerPaused
from lodger.states.worker_still_paused import WorkerStillPaused
from lodger.states.worker_unpaused import WorkerUnpaused
from tests.unit.readings import HOST, base, deployed, driver, on_gpus, ours, process, readings, record, unit
from tests.unit.states.support_pauses import PLACES, UNTIL, WAY, A, stands


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
    assert "./ops deploy --host" in blocker.hint


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
    assert state.missing(read) == f"{PLACES.script} would not start the release that is deployed now"
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
    state = GpusWaitedFor(A, HOST, neighbours=(), promised=lambda _: 0, replaced=[], patience=300)
    assert state.blockers(read) == []
    assert state.missing(read)
    assert "pid 4711 of user bob" in state.progress(read)
    assert state.deadline == 300
