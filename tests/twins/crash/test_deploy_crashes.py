"""A deploy struck at some of its commands, chosen to hit each state; `invoke lab.crash` strikes at all of them."""

from __future__ import annotations

from pathlib import Path

from lab.lab import Lab
from tests.twins.crash.harness import Point, strike
from tests.twins.crash.scenarios import deploy
from tests.twins.site import Site

TWINS = ()


def test_a_deploy_that_loses_power_before_anything_of_ours_runs_is_finished_by_the_next_one(lab: Lab, tmp_path: Path) -> None:
    point = Point("power", "install lodger-worker-a.service", "after")
    wrong, said = strike(deploy(lab), Site(lab, tmp_path), point, tmp_path / "mailbox")
    assert wrong == [], said
