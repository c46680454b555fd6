"""The old checkout and this one take turns on a host: neither loses what the other left there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import judge
from lab.lab import Lab
from lab.twin import Twin
from tests.twins import old
from tests.twins.old import Old, killed
from tests.twins.site import REPLACED, Fresh, Site, declared, foreign_changes, given_back, serves

HOST = ("--host", "node1")
A = (*HOST, "--worker", "a")
NEIGHBOUR, WORKER = "qwen38-fp8-sglang", "lodger-worker-a"
STARTED = ["docker", "inspect", "-f", "{{.Id}} {{.State.StartedAt}}", WORKER]
# Files of ours, and when each was written. Every run leaves its journal, and nothing else of it may stay.
OURS = (
    "find /opt/lodger /etc/lodger /var/lib/lodger /etc/systemd/system/lodger-* -path /var/lib/lodger/journal -prune "
    "-o ! -path /var/lib/lodger -printf '%p %m %T@ %l\\n' 2>/dev/null | sort"
)
UNFINISHED = (
    "cd /var/lib/lodger && ls -d lock* unfinished.json paused returns /etc/systemd/system/lodger-resume-* 2>/dev/null || true"
)
LEFT = "ls -d /opt/lodger /etc/lodger /etc/systemd/system/lodger-* 2>/dev/null; docker ps -aq --filter name=lodger"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old.unpack(tmp_path_factory.mktemp("old") / "tree")


@pytest.fixture(scope="module")
def libraries(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old.libraries(tree, tmp_path_factory.mktemp("old") / "libraries")


@pytest.fixture
def before(site: Site, tree: Path, libraries: Path) -> Old:
    """The product before the change, for the same inventory."""
    return Old(site, tree, libraries)


@pytest.fixture
def twin(lab: Lab, fresh: Fresh) -> Iterator[Twin]:
    """node1 as it was at first, with engines that start in two seconds."""
    made = fresh("node1")
    made.clock(60)
    yield made
    made.clock(lab.clock)


def keys(one: dict[str, Any]) -> set[str]:
    """The names in a result, those of its states after a dot."""
    return {*one, *(f"states.{key}" for state in one["states"] for key in state)}


def test_an_upgrade_changes_nothing_and_each_rolls_back_what_the_other_deployed(twin: Twin, before: Old, site: Site) -> None:
    at_first = judge.snapshot(twin)
    deployed = before.well("deploy", *HOST, "--json").one
    footprint, ours, started = judge.snapshot(twin), twin.exec(OURS).stdout, twin.exec(STARTED).stdout
    config, plan = declared(twin, WORKER), before.well("plan", *HOST, "--json").one

    same, again = site.well("plan", *HOST, "--json").one, site.well("deploy", *HOST, "--json").one

    assert (same["diff"], same["outcome"], again["outcome"], again["changed"]) == ("", "satisfied", "satisfied", [])
    assert keys(plan) <= keys(same)
    assert keys(deployed) <= keys(again)
    assert {state["name"] for state in deployed["states"]} <= {state["name"] for state in again["states"]}
    assert twin.exec(STARTED).stdout == started
    assert twin.exec(OURS).stdout == ours
    assert judge.difference(footprint, judge.snapshot(twin)) == []
    assert f"{NEIGHBOUR}: down from" in site.well("postmortem", deployed["journal"]).out, "old journals can still be read"

    site.pool(max_queued_requests=32)
    site.well("deploy", *HOST)
    assert declared(twin, WORKER) not in {"", config}
    before.well("rollback", *HOST)
    assert declared(twin, WORKER) == config
    assert serves(twin, 30000)

    site.well("rollback", *HOST)
    assert twin.exec(LEFT, check=False).stdout == ""
    assert serves(twin, 30000)
    assert given_back(at_first, judge.snapshot(twin), "node1") == []


def test_what_one_leaves_unfinished_or_paused_is_ended_by_the_other(twin: Twin, before: Old, site: Site) -> None:
    at_first = judge.snapshot(twin)
    killed(before.start("deploy", *HOST), lambda: declared(twin, WORKER) != "", "the worker's start")

    ended = site.well("deploy", *HOST, "--json")

    assert "did not finish; continuing it" in ended.err
    assert {"release_staged", f"neighbour_replaced({NEIGHBOUR})", "worker_ready(a)"} <= {*ended.one["changed"]}
    assert serves(twin, 30000)
    assert twin.exec(UNFINISHED).stdout == ""
    assert foreign_changes(at_first, judge.snapshot(twin), REPLACED["node1"]) == []

    until = twin.exec("date -d '+3 hours' '+%F %H:%M'").stdout.strip()
    before.well("pause", *A, "--until", until)
    assert declared(twin, WORKER) == ""
    assert f"until {until}" in str(site.well("plan", *HOST, "--json").one["remarks"])
    site.well("resume", *A)
    assert serves(twin, 30000)
    assert twin.exec(UNFINISHED).stdout == ""

    killed(site.start("rollback", *HOST), lambda: declared(twin, WORKER) == "", "the worker's end")
    before.well("rollback", *HOST)
    assert twin.exec(f"{UNFINISHED}; {LEFT}", check=False).stdout == ""
    assert serves(twin, 30000)
    assert given_back(at_first, judge.snapshot(twin), "node1") == []
