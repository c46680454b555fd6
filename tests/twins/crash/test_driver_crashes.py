"""The driver upgrade struck at some of its commands; `invoke lab.crash` strikes at all of them and prints the table."""

from __future__ import annotations

from pathlib import Path

from lab.lab import Lab
from tests.twins.crash.harness import Point, strike
from tests.twins.crash.scenarios import driver_upgrade
from tests.twins.site import Site

TWINS = ()


# Without a worker of ours, which a test of test_driver_upgrade has: a deploy of it costs more than the upgrade.
def test_an_upgrade_whose_controller_is_killed_while_dpkg_is_at_work_is_finished_by_the_next_run(
    lab: Lab, tmp_path: Path
) -> None:
    point = Point("kill", "install driver", "during")
    scenario, site = driver_upgrade(lab, worker=False), Site(lab, tmp_path)
    wrong, said = strike(scenario, site, point, tmp_path / "mailbox", delay=1.5)
    assert wrong == [], said
