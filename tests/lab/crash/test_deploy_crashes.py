"""A deploy struck at some of its commands, chosen to hit each state; `invoke lab.crash` strikes at all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.lab import Lab
from tests.lab.crash.harness import Point, strike
from tests.lab.crash.scenarios import deploy
from tests.lab.site import Site


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
