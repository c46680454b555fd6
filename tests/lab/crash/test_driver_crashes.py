"""The driver upgrade struck at some of its commands; `invoke lab.crash` strikes at all of them and prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.lab import Lab
from tests.lab.crash.harness import Point, strike
from tests.lab.crash.scenarios import driver_upgrade
from tests.lab.site import Site


@pytest.mark.parametrize(
    "point",
    [
        Point("kill", 3, "during"),  # packages are being downloaded
        Point("kill", 9, "during"),  # dpkg is at work
        Point("drop", 9, "during"),
        Point("power", 9, "after"),  # installed, the old module gone with the power
        Point("kill", 11, "after"),  # the new module is loaded, nobody is back
    ],
    ids=str,
)
def test_a_struck_upgrade_is_finished_by_the_next_run(point: Point, lab: Lab, tmp_path: Path) -> None:
    wrong, said = strike(driver_upgrade(lab), Site(lab, tmp_path), point, tmp_path / "mailbox")
    assert wrong == [], said
