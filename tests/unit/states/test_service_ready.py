"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from dataclasses import replace
from typing import Any

import pytest

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.states.base import NoUndo
from lodger.states.service_ready import ServiceReady
from tests.unit.readings import HOST, ours, readings, router, serving
from tests.unit.states.support_states import ENABLED, MACHINE, OLD, READY, A, host, shown


def starting(**values: Any) -> Facts:
    return readings(
        host(**{"unit": ENABLED, "serving": serving(), "containers": [ours(A)], **values}) | {facts.MACHINE: MACHINE}
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, ""),
        ({"unit": None}, "lodger-worker-a.service is not installed"),
        ({"unit": replace(ENABLED, active="failed")}, "lodger-worker-a.service is failed"),
        ({"unit": replace(ENABLED, active="activating")}, "lodger-worker-a.service is activating"),
        ({"serving": serving(config="c0")}, "lodger-worker-a is not running this configuration"),
        ({"serving": serving(health=503)}, "its health check answers 503"),
        ({"serving": serving(health=0)}, "its health check answers nothing"),
    ],
)
def test_ready_is_the_unit_the_configuration_and_health(values: dict[str, Any], said: str) -> None:
    assert READY.missing(starting(**values)) == said


def test_a_service_that_is_still_starting_only_needs_time() -> None:
    young = replace(ENABLED, started=str(int((MACHINE.uptime - 100) * 1e6)))
    assert READY.act(starting(unit=young, serving=serving(health=503))) == []


@pytest.mark.parametrize(
    "values",
    [
        {"unit": replace(ENABLED, started=str(int((MACHINE.uptime - A.start - 1) * 1e6)))},
        {"unit": replace(ENABLED, started="4999000000", restarts=2)},
        {"unit": replace(ENABLED, started="4999000000", active="failed")},
        {"unit": replace(ENABLED, started="4999000000"), "containers": [ours(OLD)]},
        {"unit": None, "containers": []},
    ],
)
def test_anything_else_is_started_again(values: dict[str, Any]) -> None:
    (command,) = READY.act(starting(**{"serving": serving(health=503), **values}))
    assert command.script == (
        "systemctl reset-failed lodger-worker-a.service 2>/dev/null; systemctl restart lodger-worker-a.service"
    )


@pytest.mark.parametrize(
    ("found", "log", "said"),
    [
        (ENABLED, "", ""),
        (None, "", ""),
        (replace(ENABLED, active="failed", result="exit-code"), "", "lodger-worker-a.service ended (exit-code)"),
        (replace(ENABLED, restarts=1), "ValueError: bad option\nbye", "ValueError: bad option"),
        (replace(ENABLED, active="activating", sub="auto-restart"), "", "lodger-worker-a.service ended (success)"),
    ],
)
def test_waiting_is_hopeless_once_it_has_ended(found: facts.Unit | None, log: str, said: str) -> None:
    assert READY.hopeless(starting(unit=found, serving=serving(health=0, log=log))) == said


def test_progress_is_the_phase_or_what_is_missing() -> None:
    assert READY.progress(starting(serving=serving(health=503, log="Load weight begin. avail mem=23 GB"))) == "loading weights"
    assert READY.progress(starting(serving=serving(health=503))) == "its health check answers 503"


def test_evidence_is_the_last_lines_in_bounds() -> None:
    log = "\n".join(f"line {number} " + "x" * 1000 for number in range(40))
    lines = READY.evidence(starting(serving=serving(log=log))).splitlines()
    assert (len(lines), lines[-1][:8], max(len(line) for line in lines)) == (15, "line 39 ", 300)


def test_a_start_is_undone_by_a_stop_unless_the_same_ran_before() -> None:
    assert shown(READY.undo(starting(containers=[]), starting())) == ["systemctl stop lodger-worker-a.service"]
    assert shown(READY.undo(starting(containers=[ours(OLD)]), starting())) == ["systemctl stop lodger-worker-a.service"]
    assert isinstance(READY.undo(starting(), starting()), NoUndo)
    assert READY.undone(starting(), starting()) == "lodger-worker-a.service is still active"
    for active in ("inactive", "failed"):
        assert READY.undone(starting(), starting(unit=replace(ENABLED, active=active))) == ""
    assert READY.undone(starting(), starting(unit=None)) == ""


def test_the_router_has_a_state_of_its_own_name() -> None:
    assert ServiceReady(router(), HOST).name == "router_ready(router)"
    assert READY.name == "worker_ready(a)"
