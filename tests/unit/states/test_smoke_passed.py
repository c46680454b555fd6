"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

import json

import pytest

from lodger.states.base import Check
from tests.unit.readings import deployed, readings, record, serving
from tests.unit.states.support_states import SMOKED, host, written


@pytest.mark.parametrize(
    ("note", "passed"),
    [
        (json.dumps({"container": "f" * 64}), True),
        (json.dumps({"container": "e" * 64}), False),
        ("", False),
        ("{", False),
        (None, False),
    ],
)
def test_smoke_holds_for_exactly_the_container_that_passed(note: str | None, passed: bool) -> None:
    files = record("smoked/worker-a.json", note) if note is not None else {}
    read = readings(host(deployed=deployed(files=files), serving=serving()))
    assert (SMOKED.missing(read) == "") is passed


def test_smoke_of_nothing_that_runs_has_not_passed() -> None:
    files = record("smoked/worker-a.json", json.dumps({"container": ""}))
    assert SMOKED.missing(readings(host(deployed=deployed(files=files)))) != ""


def test_smoke_is_asked_at_the_containers_own_address_and_recorded_after() -> None:
    check, note = SMOKED.act(readings(host(serving=serving())))
    assert isinstance(check, Check)
    assert str(check).startswith("check: smoke of worker-a at http://$(docker inspect ")
    assert str(check).endswith("lodger-worker-a):30000")
    assert json.loads(written([note], "/var/lib/lodger/smoked/worker-a.json")) == {"container": "f" * 64, "config": "c1"}
