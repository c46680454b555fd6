"""From inventory and readings to a plan: what a deploy refuses and wants, and where a rollback goes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lodger import capacity
from lodger.checkout import CODE
from lodger.engines import expectations
from lodger.engines.pool import RouterEntry
from lodger.engines.sglang import smoke_run
from lodger.engines.sglang.capacity.subject import SglangSubject
from lodger.engines.sglang.smoke_judgements import Expectation
from lodger.errors import Refused
from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.ownership import Owner
from lodger.inventory import Fleet
from lodger.plans import runbook
from lodger.plans.deploy import Deploy
from lodger.plans.expand import names
from lodger.release.manifest import installed as installed_services
from lodger.release.render import render
from lodger.run.plan import Plan
from lodger.states.pool_place import PoolPlace
from lodger.states.target import Target, TargetOptions, TargetRelease
from lodger.states.worker_drained import WorkerDrained
from tests.unit.plans.support_plans import holding, on_host
from tests.unit.readings import base, deployed, installed, readings, serving, worker

ROOT = CODE


def request(fleet: Fleet, host: str = "node1", contained: Callable[[str], bool] = lambda _: True) -> Deploy:
    return Deploy(fleet, fleet.hosts[host], runbook.load("deploy"), "r9", contains=contained)


def plan(fleet: Fleet, read: Facts, host: str = "node1", contained: Callable[[str], bool] = lambda _: True) -> Plan:
    return request(fleet, host, contained).plan(read, None)


def target(fleet: Fleet, host: str = "node1", together: Sequence[str] = ()) -> Target:
    return Target(fleet, fleet.hosts[host], TargetRelease(), options=TargetOptions(frozenset(together)))


def test_a_worker_without_the_pools_draft_needs_no_weights_of_it(fleet: Fleet) -> None:
    host = fleet.hosts["node1"]
    alone = host.model_copy(update={"workers": {"a": host.workers["a"].model_copy(update={"engine": {"draft": None}})}})
    steps = plan(fleet.model_copy(update={"hosts": {**fleet.hosts, "node1": alone}}), holding(deployed())).steps
    assert [name for name in names(steps) if name.startswith("weights_present")] == ["weights_present(qwen3.8-27b-fp8)"]


def test_a_fresh_host_gets_all_of_its_inventory(fleet: Fleet) -> None:
    found = plan(fleet, holding(deployed()), "node2")
    steps = found.steps
    assert found.params == {"release": render(fleet, fleet.hosts["node2"]).id}
    assert names(steps)[0] == "host_fit"
    assert names(steps)[-2:] == ["release_current", "old_releases_pruned"]
    assert {"neighbour_replaced(vllm-qwen.service)", "worker_ready(a)", "worker_ready(b)", "router_ready(router)"} <= set(
        names(steps)
    )


def test_all_facts_of_a_deploy_are_foreseen_so_that_one_with_nothing_to_do_reads_once(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        wanted = request(fleet, host.name)
        found = wanted.plan(holding(on_host(render(fleet, host))), None)
        assert set(found.facts) <= {*wanted.reads(), facts.MACHINE, facts.LEDGER}
        # And the runbook is expanded once.
        assert found.steps is wanted._expansion._steps


def test_a_service_that_the_inventory_no_longer_names_goes(fleet: Fleet) -> None:
    old = worker("z", port=30009)
    there = deployed(("r1",), links={"worker-z": "r1"}, files=installed("r1", old))
    assert "service_gone(worker-z)" in names(plan(fleet, holding(there)).steps)
    # Also one that only a run which was cut off had installed.
    halfway = deployed(stored=("r0",), links={"worker-z": "r0"}, files=installed("r0", old))
    assert "service_gone(worker-z)" in names(plan(fleet, holding(halfway)).steps)


def test_a_link_to_a_release_that_is_gone_is_no_service(fleet: Fleet) -> None:
    assert installed_services(deployed(links={"worker-z": "gone"})) == {}


def test_an_older_checkout_is_refused_and_names_both(fleet: Fleet) -> None:
    there = on_host(render(fleet, fleet.hosts["node1"]), revision="abcdef1234567890")
    asked: list[str] = []

    def contained(revision: str) -> bool:
        asked.append(revision)
        return False

    with pytest.raises(Refused) as caught:
        plan(fleet, holding(there), contained=contained)
    assert asked == ["abcdef1234567890"]
    assert "abcdef123456," in caught.value.cause
    assert there.current in caught.value.cause
    assert "--force" in caught.value.hint
    assert plan(fleet, holding(there), contained=lambda _: True)


def test_a_fresh_host_has_no_revision_to_be_older_than(fleet: Fleet) -> None:
    assert plan(fleet, holding(deployed()), contained=lambda _: False)


def test_a_deployed_release_without_its_manifest_is_refused_in_words(fleet: Fleet) -> None:
    with pytest.raises(Refused, match="release r1 has no readable manifest"):
        plan(fleet, holding(deployed(("r1",))))


def test_what_smoke_expects_survives_the_manifest(fleet: Fleet) -> None:
    host = fleet.hosts["node2"]
    found = json.loads(json.dumps(expectations(fleet, host)))
    assert sorted(found) == ["worker-a", "worker-b"]
    for name, worker_of in host.workers.items():
        floor = capacity.floor(SglangSubject.of(fleet, host, worker_of))
        assert floor is not None
        assert smoke_run.read(found[f"worker-{name}"]) == Expectation.of(fleet, host, worker_of, floor)


def test_neighbours_share_gpus_only_with_policy_pause(fleet: Fleet) -> None:
    assert target(fleet).shares_gpus == (Owner("program", "aigc-creator"),)
    assert target(fleet, "node2").shares_gpus == ()


def test_workers_of_a_pool_and_its_router_take_turns(fleet: Fleet) -> None:
    wanted = target(fleet, "node2")
    assert {wanted.pool_of(name) for name in ("worker-a", "worker-b", "router")} == {"qwen38"}
    assert wanted.pool_of("worker-z") == ""


def test_a_worker_stands_at_every_router_of_its_pool_and_beside_all_others_of_it(fleet: Fleet) -> None:
    wanted = render(fleet, fleet.hosts["node1"]).by_name["worker-a"]
    there = PoolPlace.of(target(fleet, together=["node1", "node2"]), wanted)
    assert there.entries == (RouterEntry("http://node2:30002", "http://node1:30000", changing=True),)
    assert [(member.name, member.changing) for member in there.members] == [
        ("worker a on node2", True),
        ("worker b on node2", True),
    ]
    alone = PoolPlace.of(target(fleet, together=["node1"]), wanted)
    assert [entry.changing for entry in alone.entries] == [False]
    assert there.old_entries == ()


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
    was = replace(release.by_name["worker-a"], config="old", **runs)
    files = installed("r1", was)
    there = holding(deployed(("r1",), links={"worker-a": "r1"}, files=files))
    (state,) = [step.state for step in plan(fleet, there).steps if step.state.name == "worker_drained(a)"]
    assert isinstance(state, WorkerDrained)
    assert [entry.worker for entry in state._place.old_entries] == [former] * bool(former)


@pytest.mark.parametrize(
    ("deployed_as", "member", "told"),
    [
        ({"context_length": "65536"}, {}, True),
        ({"context_length": "131072"}, {}, False),
        ({"context_length": "65536"}, {"context_length": "131072"}, False),
    ],
)
def test_a_mate_that_is_away_while_what_the_pool_serves_changes_is_named(
    fleet: Fleet, deployed_as: dict[str, str], member: dict[str, str], told: bool
) -> None:
    release = render(fleet, fleet.hosts["node1"])
    was = replace(release.by_name["worker-a"], config="old", identity=deployed_as)
    ours = deployed(("r1",), links={"worker-a": "r1"}, files=installed("r1", was))
    where = PoolPlace.of(target(fleet), was)
    answers = {other.url: member if other.name == "worker a on node2" else {"version": "0.5.19"} for other in where.members}
    running = {facts.serving_fact(was.container, was.unit, "node1"): serving(config="old")}
    read = readings(
        {**base(deployed=ours), **running, where.identities: answers, where.rotation: dict.fromkeys(["http://node2:30002"])}
    )
    line = "worker a on node2 does not answer, and may come back with what it served before"
    drained = [step.state for step in plan(fleet, read).steps if step.state.name == "worker_drained(a)"]
    assert [one.startswith(line) for state in drained for one in state.remarks(read)] == [True] * told
