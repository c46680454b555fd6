"""Where a rollback goes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from lodger.checkout import CODE
from lodger.errors import Refused
from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import Deployed, HostFile
from lodger.inventory import Fleet, Host
from lodger.plans import runbook
from lodger.plans.deploy import Deploy
from lodger.plans.expand import names
from lodger.plans.rollback import Rollback
from lodger.run.ledger import Ledger
from lodger.states.neighbour_status import NeighbourStatus
from tests.unit.plans.support_plans import holding
from tests.unit.readings import deployed, installed, record, release_files, router, worker

ROOT = CODE


A1, A2 = worker("a", config="c1"), worker("a", config="c2")
TWO = deployed(
    ("r1", "r2"), links={"worker-a": "r2", "router": "r2"}, files=installed("r1", A1) | installed("r2", A2, router())
)
RECORD = record(
    "replaced/container-old.json", json.dumps(asdict(NeighbourStatus("container", "old", True, True, {"old": "no"}, ("old",))))
)


def back(fleet: Fleet, ours: Deployed, ledger: Ledger | None = None) -> tuple[list[str], list[str]]:
    """Return the history that a rollback leaves and the names of its states."""
    host: Host = fleet.hosts["node1"]
    found = Rollback(fleet, host, runbook.load("rollback")).plan(holding(ours), ledger)
    return found.params["history"], names(found.steps)


def left_behind(book: str, before: Deployed, history: list[str] | None = None) -> Ledger:
    """Return the ledger of a run that was cut off when the host had been as ``before`` says."""
    lines = [*(f"history={release}" for release in before.history), *(f"stored={release}" for release in before.stored)]
    text = "\n".join([f"current={before.current}", *lines, "@files\n"])
    params = {"history": history} if history is not None else {"release": "r2"}
    return Ledger("run", book, params, "ops", Facts({facts.DEPLOYED.name: (0, text)}).dump())


def test_a_ledger_says_its_version_and_one_of_another_is_refused() -> None:
    one = left_behind("driver-upgrade", TWO)
    with pytest.raises(Refused) as caught:  # it does not say how the host stood
        Ledger.load(one.text(), "driver-upgrade")
    assert "cannot be read" in caught.value.what
    text = one.text().replace('"version": 1', '"version": 2')
    assert text != one.text()
    with pytest.raises(Refused) as caught:
        Ledger.load(text, "driver-upgrade")
    assert caught.value.what == "the ledger of an unfinished run has another version"
    assert caught.value.hint == "finish that driver-upgrade with the Lodger of ops, who started it"


def test_rollback_goes_one_release_back(fleet: Fleet) -> None:
    # The neighbour stays replaced: its turn comes with the last release.
    history, states = back(fleet, replace(TWO, files={**TWO.files, **RECORD}))
    assert history == ["r1"]
    assert "worker_ready(a)" in states
    assert "service_gone(router)" in states
    assert not [name for name in states if name.startswith("neighbour_restored")]


def test_rollback_of_the_only_release_removes_it_and_brings_the_replaced_neighbour_back(fleet: Fleet) -> None:
    only = deployed(("r1",), links={"worker-a": "r1"}, files=installed("r1", A1) | RECORD)
    assert back(fleet, only) == (
        [],
        [
            "leaver_drained(worker-a)",
            "service_gone(worker-a)",
            "neighbour_restored(old)",
            "release_current",
            "old_releases_pruned",
        ],
    )


@pytest.mark.parametrize(
    ("history", "left"),
    [(("r1", "r2", "r1"), ["r1", "r2"]), (("r1", "r2", "r3"), ["r1", "r2"])],
)
def test_rollback_follows_the_history_line_by_line(fleet: Fleet, history: tuple[str, ...], left: list[str]) -> None:
    files = installed("r3", A1) | installed("r2", A2) | installed("r1", A1)
    there = deployed(history, links={"worker-a": history[-1]}, files=files)
    assert back(fleet, there)[0] == left


@pytest.mark.parametrize("history", [(), ("r2", "r1"), ("r1",), ("r1", "r2", "foo bar")])
def test_a_history_that_does_not_end_with_what_is_current_is_no_way_back(fleet: Fleet, history: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="it is not known which release to go back to"):
        back(fleet, replace(TWO, history=history))


@pytest.mark.parametrize("data", [{}, {"services": [{"name": "worker-a"}]}, {"services": 3}])
def test_a_manifest_that_names_no_services_is_refused_for_what_it_is(fleet: Fleet, data: dict[str, Any]) -> None:
    path = "/opt/lodger/releases/r2/manifest.json"
    there = replace(TWO, files={**TWO.files, path: HostFile(json.dumps(data), 0o644, "root")})
    for build in (
        lambda: back(fleet, there),
        lambda: Deploy(fleet, fleet.hosts["node1"], runbook.load("deploy"), "r9", contains=bool).plan(holding(there), None),
    ):
        with pytest.raises(Refused, match="release r2 has no readable manifest"):
            build()


def test_a_release_whose_smoke_cannot_be_read_is_refused_before_anything_is_restarted(fleet: Fleet) -> None:
    path = "/opt/lodger/releases/r1/manifest.json"
    data = json.loads(TWO.files[path].content)
    data["smoke"]["worker-a"]["from_the_future"] = 1
    with pytest.raises(Refused, match="what this release expects of smoke cannot be read"):
        back(fleet, replace(TWO, files={**TWO.files, path: HostFile(json.dumps(data), 0o644, "root")}))


def test_nothing_to_roll_back_is_refused(fleet: Fleet) -> None:
    with pytest.raises(Refused, match="there is nothing to roll back"):
        back(fleet, deployed())


def test_a_replaced_neighbour_is_owed_even_with_no_release_left(fleet: Fleet) -> None:
    assert "neighbour_restored(old)" in back(fleet, deployed(files=RECORD))[1]


def test_a_service_left_by_a_first_deploy_that_was_cut_off_is_removed(fleet: Fleet) -> None:
    halfway = deployed(stored=("r1",), links={"worker-a": "r1"}, files=installed("r1", A1))
    history, states = back(fleet, halfway, left_behind("deploy", deployed()))
    assert (history, states[:2]) == ([], ["leaver_drained(worker-a)", "service_gone(worker-a)"])


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(replace(TWO, current="r1", history=("r1",)), id="before it recorded anything"),
        pytest.param(replace(TWO, current="r1", history=("r1", "r2")), id="between history and link"),
        pytest.param(TWO, id="after it recorded its release"),
    ],
)
def test_after_a_deploy_that_was_cut_off_rollback_goes_to_what_served_before(fleet: Fleet, now: Deployed) -> None:
    before = deployed(("r1",), stored=("r1",))
    history, states = back(fleet, now, left_behind("deploy", before))
    assert history == ["r1"]
    assert "worker_ready(a)" in states


def test_what_only_a_cut_off_deploy_had_replaced_does_not_wait_for_the_last_rollback(fleet: Fleet) -> None:
    halfway = replace(TWO, current="r1", history=("r1",), files={**TWO.files, **RECORD})
    _, states = back(fleet, halfway, left_behind("deploy", deployed(("r1",), stored=("r1",))))
    assert {"worker_ready(a)", "neighbour_restored(old)"} <= set(states)


def test_a_rollback_that_was_cut_off_keeps_its_target(fleet: Fleet) -> None:
    # It had already recorded the earlier release: going back once more would be one too far.
    recorded = replace(TWO, current="r1", history=("r1",))
    assert back(fleet, recorded, left_behind("rollback", TWO, ["r1"]))[0] == ["r1"]


def test_a_rollback_brings_the_earlier_key_back_before_the_workers(fleet: Fleet) -> None:
    one, two = (worker("a", pool="qwen38", key=mark) for mark in ("0000aaaa", "0000bbbb"))
    files = {**release_files("r1", one), **installed("r2", two)}
    _, done = back(fleet, deployed(("r1", "r2"), links={"worker-a": "r2"}, files=files))
    assert done.index("key_in_place(qwen38)") < done.index("worker_drained(a)")


def test_a_router_that_only_the_earlier_release_has_is_complete_with_its_workers(fleet: Fleet) -> None:
    """The inventory no longer has it, and the rollback goes to a release of before."""
    files = {**release_files("r1", worker(), router(pool="qwen38")), **installed("r2", worker())}
    _, done = back(fleet, deployed(("r1", "r2"), links={"worker-a": "r2"}, files=files))
    assert "pool_complete" in done
