"""A deploy struck at some of its commands, chosen to hit each state; `invoke lab.crash` strikes at all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.lab import Lab
from lab.twin import Twin
from tests.lab.crash.harness import Point, Scenario, strike
from tests.lab.site import REPLACED, Site, declared, serves


def deploy(lab: Lab) -> Scenario:
    def twin() -> Twin:
        lab.reset(["node1"])
        return lab.twin("node1")

    def goal(found: Twin) -> list[str]:
        wrong = [] if declared(found, "lodger-worker-a") else ["no worker of ours runs"]
        return wrong + ([] if serves(found, 30000) else ["nothing serves on port 30000"])

    theirs = {"gpu", "port"}
    return Scenario(
        words=("deploy", "--host", "node1"),
        twin=twin,
        goal=goal,
        expected=lambda kind, name: (kind, name) in REPLACED["node1"] or kind in theirs,
        restarted=lambda _kind, _name: False,
    )


@pytest.mark.parametrize(
    "point",
    [
        Point("kill", 5, "during"),  # the release is uploaded
        Point("kill", 8, "after"),  # between the record of the neighbour and its stop
        Point("drop", 10, "during"),  # the neighbour is being stopped
        Point("power", 14, "after"),  # the unit was installed, nothing runs yet
    ],
    ids=str,
)
def test_a_struck_deploy_is_finished_by_the_next_one(point: Point, lab: Lab, tmp_path: Path) -> None:
    wrong, said = strike(deploy(lab), Site(lab, tmp_path), point, tmp_path / "mailbox")
    assert wrong == [], said
