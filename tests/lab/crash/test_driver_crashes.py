"""The driver upgrade struck at some of its commands; `invoke lab.crash` strikes at all of them and prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.lab import Lab
from tests.lab.crash.harness import Point, strike
from tests.lab.crash.scenarios import driver_upgrade
from tests.lab.site import Site


@pytest.mark.parametrize(
    ("point", "worker"),
    [
        (Point("kill", "install driver", "during"), False),  # dpkg is at work
        (Point("kill", "start worker-a", "during"), True),  # all others are back
    ],
    ids=str,
)
def test_a_struck_upgrade_is_finished_by_the_next_run(point: Point, worker: bool, lab: Lab, tmp_path: Path) -> None:
    scenario, site = driver_upgrade(lab, worker=worker), Site(lab, tmp_path)
    wrong, said = strike(scenario, site, point, tmp_path / "mailbox", delay=1.5)
    assert wrong == [], said
