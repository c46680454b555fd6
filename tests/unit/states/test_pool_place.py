"""A worker is out of its pool's routers while it changes, and comes back only when it serves what the pool serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lodger.engines.pool import OtherKey, PoolMember, RouterEntry
from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.keys import held_keys_fact
from lodger.states.base import NoUndo
from lodger.states.leaver_drained import LeaverDrained
from lodger.states.pool_complete import PoolComplete
from lodger.states.pool_place import PoolKey, PoolPlace, RouterMembers
from lodger.states.worker_drained import WorkerDrained
from lodger.states.worker_joined import WorkerJoined
from tests.unit.readings import HOST, base, container, ours, readings, serving, worker

IDENTITY = {"served_model_name": "q", "context_length": "131072", "tool_call_parser": "qwen3_coder"}
ROUTER, STANDBY = "http://node2:30002", "http://127.0.0.1:30002"
OWN, MATE = "http://127.0.0.1:30000", "http://node2:30000"
ENTRIES = (RouterEntry(ROUTER, "http://node1:30000"), RouterEntry(STANDBY, OWN))
PLACE = PoolPlace(OWN, ENTRIES, (PoolMember("worker a on node2", MATE),))
ALONE = PoolPlace(OWN, ENTRIES)
NEW = worker("a", config="new", identity=IDENTITY)
OLD = worker("a", config="old", identity=IDENTITY)
IN = {ROUTER: {"http://node1:30000": True, MATE: True}, STANDBY: {OWN: True, MATE: True}}
OUT = {ROUTER: {MATE: True}, STANDBY: {MATE: True}}


def seen(
    rotation: Mapping[str, Any],
    *,
    runs: Any = OLD,
    identities: Mapping[str, Mapping[str, str]] | None = None,
    place: PoolPlace = PLACE,
    in_use: str = "",
) -> Facts:
    told = {OWN: IDENTITY, MATE: IDENTITY} if identities is None else identities
    there = [ours(runs)] if runs else [container("somebody")]
    return readings(
        base(containers=there)
        | {
            place.rotation: rotation,
            place.identities: told,
            facts.serving_fact(NEW.container, NEW.unit, HOST): serving(),
            held_keys_fact("q"): {"": (in_use, "600 root")},
        }
    )


def scripts(commands: Any) -> str:
    assert not isinstance(commands, NoUndo)
    return "\n".join(command.script for command in commands)


DRAINED = WorkerDrained(NEW, HOST, PLACE)
JOINED = WorkerJoined(NEW, HOST, PLACE)


def test_a_worker_that_runs_something_else_leaves_every_router_before_it_is_stopped() -> None:
    assert DRAINED.missing(seen(IN)) == f"{ROUTER} and {STANDBY} sends it requests"
    done = scripts(DRAINED.act(seen(IN)))
    assert done.count("DELETE") == 2
    assert done.index("DELETE") < done.index("still running")
    assert DRAINED.missing(seen(OUT)) == ""


@pytest.mark.parametrize("runs", [NEW, None])
def test_a_worker_that_stays_as_it_is_or_does_not_run_is_left_where_it_is(runs: Any) -> None:
    assert DRAINED.missing(seen(IN, runs=runs)) == ""


def test_a_router_that_is_away_holds_nobody_up() -> None:
    away = {ROUTER: None, STANDBY: None}
    assert DRAINED.missing(seen(away)) == ""
    assert JOINED.missing(seen(away, runs=NEW)) == ""


def test_only_the_routers_that_list_it_are_told() -> None:
    half = {**OUT, ROUTER: IN[ROUTER]}
    assert scripts(DRAINED.act(seen(half))).count("DELETE") == 1


def test_the_pools_only_worker_says_that_there_will_be_a_gap_and_how_long() -> None:
    state = WorkerDrained(NEW, HOST, ALONE)
    only = {ROUTER: {"http://node1:30000": True}, STANDBY: {OWN: True}}
    assert "it does not answer until this one is ready again (a start may take 900 s)" in state.missing(seen(only, place=ALONE))
    measured = {OWN: {**IDENTITY, "scheduler_e2e": "71.6"}}
    assert "(its last start took 72 s)" in state.missing(seen(only, place=ALONE, identities=measured))
    assert "no answers" not in state.missing(seen(IN, place=ALONE)), "somebody else is behind the router"


def test_without_a_router_the_pools_only_worker_says_so_too() -> None:
    """Nothing has to be done for it, so the plan would not show the state."""
    lonely = PoolPlace(OWN)
    state = WorkerDrained(NEW, HOST, lonely)
    said = "worker-a is stopped; no other worker serves the pool: it does not answer until this one is ready again (a start may take 900 s)"
    assert (state.missing(seen({}, place=lonely)), state.remarks(seen({}, place=lonely))) == ("", [said])
    assert state.remarks(seen({}, runs=NEW, place=lonely)) == [], "it is not stopped"
    assert state.remarks(seen({}, runs=None, place=lonely)) == [], "it answers nothing now"
    beside = replace(lonely, members=PLACE.members)
    assert WorkerDrained(NEW, HOST, beside).remarks(seen({}, place=beside)) == []
    assert DRAINED.remarks(seen(IN)) == [], "the state says it"
    assert WorkerDrained(NEW, HOST, PoolPlace()).remarks(seen({}, place=PoolPlace())) == [], "it is in no pool"


@pytest.mark.parametrize("state", [DRAINED, JOINED])
def test_a_mate_that_serves_something_else_is_named_unless_this_command_changes_it_too(state: Any) -> None:
    other = {OWN: IDENTITY, MATE: {**IDENTITY, "context_length": "65536"}}
    (blocker,) = state.blockers(seen(OUT, runs=NEW, identities=other))
    assert (blocker.what, blocker.awaits) == ("worker a on node2 does not serve the same as the rest of its pool would", "")
    assert blocker.cause == "context_length 65536 instead of 131072"
    together = PoolPlace(OWN, ENTRIES, (PoolMember("worker a on node2", MATE, changing=True),))
    assert type(state)(NEW, HOST, together).blockers(seen(OUT, runs=NEW, identities=other)) == []
    assert state.blockers(seen(OUT, runs=NEW, identities={OWN: IDENTITY, MATE: {}})) == [], "who does not answer is not judged"


KEYED = replace(PLACE, pool_key=PoolKey("/k", "q", "new"))
ANOTHER_KEY = "does not use the key that its pool is to use"


@pytest.mark.parametrize(
    ("in_use", "member", "router", "who"),
    [
        ("new", IDENTITY, IN[ROUTER], []),
        ("new", OtherKey(), IN[ROUTER], ["worker a on node2"]),
        ("new", {}, None, []),
        ("new", IDENTITY, OtherKey(), [f"the router at {ROUTER}"]),
        ("old", IDENTITY, IN[ROUTER], ["worker a on node2", f"the router at {ROUTER}"]),
        ("old", OtherKey(), OtherKey(), []),
        ("", OtherKey(), OtherKey(), []),
        ("", {}, None, []),
    ],
)
def test_who_asks_for_another_key_than_the_pool_is_to_is_named(in_use: str, member: Any, router: Any, who: list[str]) -> None:
    """Before the new key is on the host those are closed who have it already, and open who would be left behind."""
    place = replace(KEYED, entries=ENTRIES[:1])
    read = seen({ROUTER: router}, runs=NEW, identities={OWN: IDENTITY, MATE: member}, place=place, in_use=in_use)
    for kind in (WorkerDrained, WorkerJoined):
        assert [blocker.what for blocker in kind(NEW, HOST, place).blockers(read)] == [f"{one} {ANOTHER_KEY}" for one in who]
    together = replace(
        place, entries=(replace(ENTRIES[0], changing=True),), members=(PoolMember("worker a on node2", MATE, changing=True),)
    )
    assert WorkerDrained(NEW, HOST, together).blockers(read) == []


def test_a_pool_that_asks_for_no_key_has_nobody_who_does() -> None:
    read = seen(IN, runs=NEW, identities={OWN: IDENTITY, MATE: OtherKey()})
    assert [blocker.what for blocker in JOINED.blockers(read)] == [f"worker a on node2 {ANOTHER_KEY}"]


def test_a_router_that_asks_for_another_key_holds_no_join_up() -> None:
    closed = {ROUTER: OtherKey(), STANDBY: IN[STANDBY]}
    assert JOINED.missing(seen(closed, runs=NEW)) == ""
    assert scripts(DRAINED.act(seen(closed))).count("DELETE") == 1


def test_a_worker_that_is_reached_elsewhere_now_leaves_from_where_it_was() -> None:
    """Its port, its address or that of its host is another one: the routers know it by the former until it is stopped."""
    place = replace(
        PLACE, entries=tuple(RouterEntry(entry.router, f"{entry.worker}9") for entry in ENTRIES), old_entries=ENTRIES
    )
    state = WorkerDrained(NEW, HOST, place)
    assert state.missing(seen(IN, place=place)) == f"{ROUTER} and {STANDBY} sends it requests"
    assert scripts(state.act(seen(IN, place=place))).count("DELETE") == 2
    undo = scripts(state.undo(seen(IN, place=place), seen(OUT, place=place)))
    assert [undo.count(f'{{"url": "{entry.worker}"}}') for entry in ENTRIES] == [1, 1]
    assert state.undone(seen(IN, place=place), seen(OUT, place=place)) == f"{ROUTER} does not send it requests again"
    assert state.undone(seen(IN, place=place), seen(IN, place=place)) == ""
    only = {ROUTER: {"http://node1:30000": True}, STANDBY: {OWN: True}}
    assert "no other worker serves the pool" in state.missing(seen(only, place=place)), (
        "it is not somebody else by its former name"
    )

    joined = WorkerJoined(NEW, HOST, place)
    both = {router: {**listed, **{entry.worker: True for entry in place.entries}} for router, listed in IN.items()}
    assert joined.missing(seen(both, runs=NEW, place=place)) == f"{ROUTER} still lists its old address {ENTRIES[0].worker}"
    assert scripts(joined.act(seen(both, runs=NEW, place=place))).count("DELETE") == 2


def test_a_stranger_in_our_own_place_does_not_join() -> None:
    stranger = {OWN: {**IDENTITY, "served_model_name": "llama"}, MATE: IDENTITY}
    (blocker,) = JOINED.blockers(seen(OUT, runs=NEW, identities=stranger))
    assert blocker.cause == "served_model_name llama instead of q"
    assert JOINED.blockers(seen(IN, runs=OLD, identities=stranger)) == [], "what runs now is about to be changed"


def test_a_worker_joins_every_router_that_answers_and_lacks_it() -> None:
    assert JOINED.missing(seen(OUT, runs=NEW)) == f"{ROUTER} does not send it requests"
    assert scripts(JOINED.act(seen(OUT, runs=NEW))).count("POST") == 2
    unwell = {ROUTER: {"http://node1:30000": False}, STANDBY: {OWN: True}}
    assert JOINED.missing(seen(unwell, runs=NEW)) == f"{ROUTER} does not send it requests"
    assert JOINED.missing(seen(IN, runs=NEW)) == ""


def test_the_undo_of_a_join_drains_before_what_follows_stops_the_worker() -> None:
    undo = scripts(JOINED.undo(seen(OUT), seen(IN, runs=NEW)))
    assert undo.count("DELETE") == 2
    assert "still running" in undo
    assert JOINED.undone(seen(OUT), seen(IN, runs=NEW)) == f"{ROUTER} still sends it requests"
    assert JOINED.undone(seen(OUT), seen(OUT)) == ""
    assert isinstance(JOINED.undo(seen(OUT), seen(OUT)), NoUndo)


def test_the_undo_of_a_leave_puts_back_exactly_what_was_there() -> None:
    half = {**OUT, ROUTER: IN[ROUTER]}
    undo = scripts(DRAINED.undo(seen(half), seen(OUT)))
    assert undo.count("POST") == 1
    assert ROUTER in undo
    assert DRAINED.undone(seen(half), seen(OUT)) == f"{ROUTER} does not send it requests again"
    assert DRAINED.undone(seen(half), seen(half)) == ""
    assert isinstance(DRAINED.undo(seen(OUT), seen(OUT)), NoUndo)
    lost = {ROUTER: None, STANDBY: OUT[STANDBY]}
    assert DRAINED.undone(seen(half), seen(lost)) == "", "a router that went away meanwhile is not this run's to bring back"


def test_who_is_to_be_removed_leaves_whatever_it_runs_and_whoever_stays() -> None:
    state = LeaverDrained(NEW, HOST, PLACE)
    other = {OWN: IDENTITY, MATE: {**IDENTITY, "context_length": "65536"}}
    assert state.missing(seen(IN, runs=NEW))
    assert state.blockers(seen(IN, runs=NEW, identities=other)) == []


ROLL = RouterMembers(STANDBY, (PoolMember("worker a on node1", OWN, changing=True), PoolMember("worker a on node2", MATE)))
COMPLETE = PoolComplete(ROLL)


def listed(
    workers: Mapping[str, bool] | None, serving: tuple[str, ...] = (OWN, MATE), closed: str = "", in_use: str = ""
) -> Facts:
    rotation, identities, *_ = COMPLETE.facts
    told = {url: OtherKey() if url == closed else IDENTITY if url in serving else {} for url in (OWN, MATE)}
    return readings({rotation: {STANDBY: workers}, identities: told, held_keys_fact("q"): {"": (in_use, "600 root")}})


def test_a_pool_is_complete_with_all_that_serve_and_nobody_else() -> None:
    assert COMPLETE.missing(listed({OWN: True, MATE: True})) == ""
    assert COMPLETE.missing(listed({OWN: True}, serving=(OWN,))) == "", "who does not serve yet is not missed"
    assert COMPLETE.missing(listed(None)) == ""
    assert COMPLETE.missing(listed({OWN: True})) == f"worker a on node2 serves, but {STANDBY} does not list it"
    stranger = COMPLETE.missing(listed({OWN: True, MATE: True, "http://x:1": True}))
    assert stranger == f"{STANDBY} lists http://x:1, which is not a worker of its pool"


def test_a_router_whose_workers_are_all_away_has_nobody_to_send_requests_to() -> None:
    assert COMPLETE.missing(listed({}, serving=())) == ""
    assert COMPLETE.missing(listed({OWN: False}, serving=())) == ""
    assert COMPLETE.missing(listed({OWN: False}, serving=(OWN,))) == f"{STANDBY} sends requests to no worker"
    assert COMPLETE.missing(listed({OWN: False, MATE: True})) == "", "one that serves badly is no reason to fail"


def test_a_router_alone_on_its_host_is_not_given_another_key_than_its_workers() -> None:
    keyed = PoolComplete(replace(ROLL, pool_key=PoolKey("/k", "q", "new")))
    left_behind = listed({OWN: True, MATE: True}, in_use="old")
    assert keyed.missing(left_behind) == f"worker a on node2 {ANOTHER_KEY}"
    assert [blocker.what for blocker in keyed.blockers(left_behind)] == [f"worker a on node2 {ANOTHER_KEY}"]
    assert keyed.missing(listed({OWN: True}, closed=MATE, in_use="new")) == f"worker a on node2 {ANOTHER_KEY}"
    assert keyed.missing(listed({OWN: True, MATE: True}, in_use="new")) == ""
    assert keyed.missing(listed(OtherKey(), in_use="new")) == f"{STANDBY} uses another key"
    assert keyed.act(listed(OtherKey(), in_use="new")) == []


def test_strangers_leave_and_the_missing_join() -> None:
    done = scripts(COMPLETE.act(listed({"http://x:1": True, OWN: True})))
    assert ("DELETE" in done, "http%3A%2F%2Fx%3A1" in done) == (True, True)
    assert (done.count("POST"), MATE in done) == (1, True)
