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
        Point("kill", "download the new packages", "during"),
        Point("kill", "install driver", "during"),  # dpkg is at work
        Point("drop", "install driver", "during"),
        Point(
            "power", "install driver", "after"
        ),  # the old module is gone with the power, and everybody is back on the new one
        Point("kill", "load driver", "after"),  # nobody is back
    ],
    ids=str,
)
def test_a_struck_upgrade_is_finished_by_the_next_run(point: Point, lab: Lab, tmp_path: Path) -> None:
    wrong, said = strike(driver_upgrade(lab), Site(lab, tmp_path), point, tmp_path / "mailbox", delay=1.5)
    assert wrong == [], said
