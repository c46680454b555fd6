"""From inventory and readings to a plan: what a deploy refuses and wants, and where a rollback goes."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from lodger import capacity, inventory
from lodger.checkout import CODE
from lodger.engines.sglang.router_api import RouterEntry
from lodger.engines.sglang.smoke import Expectation
from lodger.errors import Refused
from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import Deployed, HostFile
from lodger.host.ownership import Owner
from lodger.inventory import Fleet, Host
from lodger.plans import operate, runbook
from lodger.plans.runbook import names
from lodger.release.manifest import manifest_text
from lodger.release.render import render
from lodger.release.service import Release
from lodger.run.ledger import Ledger
from lodger.run.runner import Plan
from lodger.states.neighbour_status import NeighbourStatus
from lodger.states.worker_drained import WorkerDrained
from tests.unit.readings import base, deployed, installed, readings, record, release_files, router, worker

ROOT = CODE


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    found = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in found.images.items()}
    return found.model_copy(update={"images": images})


def plan(fleet: Fleet, host: str = "node1", contained: Callable[[str], bool] = lambda _: True) -> Plan:
    return operate.deploy(fleet, fleet.hosts[host], runbook.load("deploy"), revision="r9", contained=contained)


def on_host(release: Release, revision: str = "r1") -> Deployed:
    """Return what a host looks like after ``release`` was deployed."""
    root = f"/opt/lodger/releases/{release.id}"
    text = manifest_text(release.id, release.host, revision, list(operate.managed(release).values()), {})
    files = {f"{root}/{file.path}": HostFile(file.content, file.mode, "root") for file in release.files}
    files[f"{root}/manifest.json"] = HostFile(text, 0o644, "root")
    for file in release.files:
        if file.path.startswith("units/"):
            files[f"/etc/systemd/system/{file.path.removeprefix('units/')}"] = HostFile(file.content, 0o644, "root")
    return deployed((release.id,), links={service.name: release.id for service in release.services}, files=files)


def holding(ours: Deployed) -> Facts:
    return readings(base(deployed=ours))


# ---------------------------------------------------------------- deploy


def test_a_worker_without_the_pools_draft_needs_no_weights_of_it(fleet: Fleet) -> None:
    host = fleet.hosts["node1"]
    alone = host.model_copy(update={"workers": {"a": host.workers["a"].model_copy(update={"engine": {"draft": None}})}})
    steps, _ = plan(fleet.model_copy(update={"hosts": {**fleet.hosts, "node1": alone}})).build(holding(deployed()), None)
    assert [name for name in names(steps) if name.startswith("weights_present")] == ["weights_present(qwen3.8-27b-fp8)"]


def test_a_fresh_host_gets_all_of_its_inventory(fleet: Fleet) -> None:
    steps, params = plan(fleet, "node2").build(holding(deployed()), None)
    assert params == {"release": render(fleet, fleet.hosts["node2"]).id}
    assert names(steps)[0] == "host_fit"
    assert names(steps)[-2:] == ["release_current", "old_releases_pruned"]
    assert {"neighbour_replaced(vllm-qwen.service)", "worker_ready(a)", "worker_ready(b)", "router_ready(router)"} <= set(
        names(steps)
    )


def test_all_facts_of_a_deploy_are_foreseen_so_that_one_with_nothing_to_do_reads_once(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        wanted = plan(fleet, host.name)
        steps, _ = wanted.build(holding(on_host(render(fleet, host))), None)
        asked = {fact.name for step in steps for fact in (*step.state.facts, *step.state.undo_facts)}
        assert asked <= {fact.name for fact in wanted.first} | {facts.MACHINE.name, facts.LEDGER.name}


def test_a_service_that_the_inventory_no_longer_names_goes(fleet: Fleet) -> None:
    old = worker("z", port=30009)
    there = deployed(("r1",), links={"worker-z": "r1"}, files=installed("r1", old))
    assert "service_gone(worker-z)" in names(plan(fleet).build(holding(there), None)[0])
    # Also one that only a run which was cut off had installed.
    halfway = deployed(stored=("r0",), links={"worker-z": "r0"}, files=installed("r0", old))
    assert "service_gone(worker-z)" in names(plan(fleet).build(holding(halfway), None)[0])


def test_a_link_to_a_release_that_is_gone_is_no_service(fleet: Fleet) -> None:
    assert operate.installed(deployed(links={"worker-z": "gone"})) == {}


def test_an_older_checkout_is_refused_and_names_both(fleet: Fleet) -> None:
    there = on_host(render(fleet, fleet.hosts["node1"]), revision="abcdef1234567890")
    asked: list[str] = []

    def contained(revision: str) -> bool:
        asked.append(revision)
        return False

    with pytest.raises(Refused) as caught:
        plan(fleet, contained=contained).build(holding(there), None)
    assert asked == ["abcdef1234567890"]
    assert "abcdef123456," in caught.value.cause
    assert there.current in caught.value.cause
    assert "--force" in caught.value.hint
    assert plan(fleet, contained=lambda _: True).build(holding(there), None)


def test_a_fresh_host_has_no_revision_to_be_older_than(fleet: Fleet) -> None:
    assert plan(fleet, contained=lambda _: False).build(holding(deployed()), None)


def test_a_deployed_release_without_its_manifest_is_refused_in_words(fleet: Fleet) -> None:
    with pytest.raises(Refused, match="release r1 has no readable manifest"):
        plan(fleet).build(holding(deployed(("r1",))), None)


def test_what_smoke_expects_survives_the_manifest(fleet: Fleet) -> None:
    host = fleet.hosts["node2"]
    found = json.loads(json.dumps(operate.expectations(fleet, host)))
    assert sorted(found) == ["worker-a", "worker-b"]
    for name, worker_of in host.workers.items():
        floor = capacity.floor(fleet, host, worker_of)
        assert floor is not None
        assert operate.expectation(found[f"worker-{name}"]) == Expectation.of(fleet, host, worker_of, floor)


def test_neighbours_share_gpus_only_with_policy_pause(fleet: Fleet) -> None:
    host = fleet.hosts["node1"]
    assert operate.neighbours(host) == (Owner("program", "aigc-creator"),)
    assert operate.neighbours(fleet.hosts["node2"]) == ()


def test_workers_of_a_pool_and_its_router_take_turns(fleet: Fleet) -> None:
    assert operate.turns(fleet.hosts["node2"]) == {"worker-a": "qwen38", "worker-b": "qwen38", "router": "qwen38"}


def test_a_worker_stands_at_every_router_of_its_pool_and_beside_all_others_of_it(fleet: Fleet) -> None:
    wanted = operate.managed(render(fleet, fleet.hosts["node1"]))["worker-a"]
    there = operate.place(fleet, fleet.hosts["node1"], wanted, ["node1", "node2"])
    assert there.seats == (RouterEntry("http://node2:30002", "http://node1:30000", changing=True),)
    assert [(mate.name, mate.changing) for mate in there.mates] == [("worker a on node2", True), ("worker b on node2", True)]
    alone = operate.place(fleet, fleet.hosts["node1"], wanted, ["node1"])
    assert [seat.changing for seat in alone.seats] == [False]
    assert there.former == ()


@pytest.mark.parametrize(
    ("runs", "former"),
    [
        ({"port": 30005}, "http://node1:30005"),
        ({"address": "10.0.0.1"}, "http://10.0.0.1:30000"),
        ({"address": ""}, ""),
        ({}, ""),
    ],
)
def test_a_deploy_knows_where_the_routers_reach_what_runs_now(fleet: Fleet, runs: dict[str, Any], former: str) -> None:
    release = render(fleet, fleet.hosts["node1"])
    was = replace(operate.managed(release)["worker-a"], config="old", **runs)
    files = installed("r1", was)
    steps, _ = plan(fleet).build(holding(deployed(("r1",), links={"worker-a": "r1"}, files=files)), None)
    (state,) = [step.state for step in steps if step.state.name == "worker_drained(a)"]
    assert isinstance(state, WorkerDrained)
    assert [seat.worker for seat in state._place.former] == [former] * bool(former)


@pytest.mark.parametrize(
    ("deployed_as", "mate", "told"),
    [
        ({"context_length": "65536"}, {}, True),
        ({"context_length": "131072"}, {}, False),
        ({"context_length": "65536"}, {"context_length": "131072"}, False),
    ],
)
def test_a_mate_that_is_away_while_what_the_pool_serves_changes_is_named(
    fleet: Fleet, deployed_as: dict[str, str], mate: dict[str, str], told: bool
) -> None:
    release = render(fleet, fleet.hosts["node1"])
    was = replace(operate.managed(release)["worker-a"], config="old", identity=deployed_as)
    ours = deployed(("r1",), links={"worker-a": "r1"}, files=installed("r1", was))
    where = operate.place(fleet, fleet.hosts["node1"], was)
    answers = {other.url: mate if other.name == "worker a on node2" else {"version": "0.5.19"} for other in where.mates}
    read = readings({**base(deployed=ours), where.identities: answers, where.rotation: dict.fromkeys(["http://node2:30002"])})
    line = "worker a on node2 does not answer, and may come back as it was"
    assert [one.startswith(line) for one in plan(fleet).remarks(read)] == [True] * told


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


# ---------------------------------------------------------------- rollback

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
    steps, params = operate.rollback(fleet, host, runbook.load("rollback")).build(holding(ours), ledger)
    return params["history"], names(steps)


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
    assert caught.value.what == "the ledger of an unfinished run is of another version"
    assert caught.value.hint == "end it with the Lodger of ops, who began it as a driver-upgrade"


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
    with pytest.raises(Refused, match="it cannot be told what to go back to"):
        back(fleet, replace(TWO, history=history))


@pytest.mark.parametrize("data", [{}, {"services": [{"name": "worker-a"}]}, {"services": 3}])
def test_a_manifest_that_names_no_services_is_refused_for_what_it_is(fleet: Fleet, data: dict[str, Any]) -> None:
    path = "/opt/lodger/releases/r2/manifest.json"
    there = replace(TWO, files={**TWO.files, path: HostFile(json.dumps(data), 0o644, "root")})
    for build in (lambda: back(fleet, there), lambda: plan(fleet, contained=bool).build(holding(there), None)):
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


# ---------------------------------------------------------------- difference


def test_nothing_differs_right_after_a_deploy(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        release = render(fleet, host)
        assert operate.difference(on_host(release), release) == ""


def test_a_hand_edited_file_shows_as_what_would_be_mended(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    there = on_host(release)
    path = "/etc/systemd/system/lodger-worker-a.service"
    text = there.files[path].content.replace("TimeoutStopSec=", "TimeoutStopSec=1")
    diff = operate.difference(replace(there, files={**there.files, path: HostFile(text, 0o644, "root")}), release)
    lines = diff.splitlines()
    assert lines[:2] == ["--- on the host/units/lodger-worker-a.service", "+++ to be/units/lodger-worker-a.service"]
    assert [line[:16] for line in lines[2:] if line[0] in "+-"] == ["-TimeoutStopSec=", "+TimeoutStopSec="]


def test_a_fresh_host_shows_every_file_as_new(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node2"])
    lines = operate.difference(deployed(), release).splitlines()
    assert [line for line in lines if line.startswith("+++")] == [f"+++ to be/{file.path}" for file in release.files]
    assert not [line for line in lines if line.startswith("-") and not line.startswith("---")]


def test_a_service_that_goes_shows_as_removed_and_a_release_that_only_lies_there_does_not(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    there = on_host(release)
    old = installed("f0", worker("z"))
    linked = replace(there, links={**there.links, "worker-z": "f0"}, stored=(*there.stored, "f0"), files={**there.files, **old})
    diff = operate.difference(linked, release)
    assert "--- on the host/worker-z/compose.yml" in diff
    assert "--- on the host/units/lodger-worker-z.service" in diff
    lying = {path: file for path, file in old.items() if path.startswith("/opt/lodger")}
    assert operate.difference(replace(there, stored=(*there.stored, "f0"), files={**there.files, **lying}), release) == ""


def test_a_difference_ends_every_line_even_where_a_file_does_not(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    there = on_host(release)
    path = f"/opt/lodger/releases/{release.id}/worker-a/compose.yml"
    cut = HostFile(there.files[path].content.rstrip("\n"), 0o644, "root")
    diff = operate.difference(replace(there, files={**there.files, path: cut}), release)
    assert diff.endswith("\n")
    assert len([line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]) == 2
