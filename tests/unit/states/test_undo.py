"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from dataclasses import replace

import pytest

from lodger.host import facts
from lodger.states.base import State
from lodger.states.neighbour_paused import NeighbourPaused
from lodger.states.service_gone import ServiceGone
from lodger.states.service_stopped import ServiceStopped
from tests.unit.readings import HOST, readings, serving
from tests.unit.states.support_states import AFTER, BEFORE, ENABLED, INSTALLED, OLD, REPLACED, VLLM, A, host, with_unit

ENDED = replace(ENABLED, active="failed", sub="failed", result="exit-code")
RESTARTING = replace(ENABLED, active="activating", sub="auto-restart", result="exit-code", restarts=3)
STOPPED = ServiceStopped(A, HOST, lambda _: False, [])
CRASHED = serving(
    config="", health=0, log="ValueError: bad option\nlodger-worker-a.service: Start request repeated too quickly."
)


@pytest.mark.parametrize("state", [INSTALLED, ServiceGone(OLD, HOST), STOPPED], ids=lambda state: state.name)
@pytest.mark.parametrize(
    ("now", "said"),
    [
        (ENABLED, ""),
        (RESTARTING, ""),
        (replace(ENDED, sub="failed-before-auto-restart"), ""),
        (ENDED, "lodger-worker-a.service failed (exit-code) and is not started again: ValueError: bad option"),
    ],
)
def test_an_undo_is_hopeless_once_systemd_gave_up_what_it_started_again(state: State, now: facts.Unit, said: str) -> None:
    before = readings(host(deployed=BEFORE, units=[ENABLED], unit=ENABLED, serving=serving(config="c0")))
    read = readings(host(deployed=BEFORE, units=[now], unit=now, serving=CRASHED))
    assert state.undone(before, read)
    assert state.undo_hopeless(before, read) == said
    assert state.evidence(read).endswith("Start request repeated too quickly.")


def test_a_service_that_did_not_run_before_is_not_what_an_undo_waits_for() -> None:
    before = readings(host(deployed=BEFORE, units=[ENDED], unit=ENDED, serving=serving(config="c0")))
    assert INSTALLED.undo_hopeless(before, readings(host(deployed=AFTER, units=[ENDED], unit=ENDED, serving=CRASHED))) == ""


@pytest.mark.parametrize(
    "state", [REPLACED, NeighbourPaused("unit", VLLM.id, lambda _: False, [])], ids=lambda state: state.name
)
def test_an_undo_does_not_wait_for_a_neighbour_that_its_manager_gave_up(state: State) -> None:
    ended = with_unit(replace(VLLM, active="failed", sub="failed", result="exit-code"))
    assert state.undone(with_unit(VLLM), ended)
    assert state.undo_hopeless(with_unit(VLLM), ended) == "vllm-qwen.service failed (exit-code) and is not started again"
    assert state.undo_hopeless(with_unit(VLLM), with_unit(replace(VLLM, active="inactive"))) == ""
