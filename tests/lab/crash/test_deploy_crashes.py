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
        Point("drop", "stop qwen38-fp8-sglang", "during"),
        Point("power", "install lodger-worker-a.service", "after"),  # nothing runs yet
    ],
    ids=str,
)
def test_a_struck_deploy_is_finished_by_the_next_one(point: Point, lab: Lab, tmp_path: Path) -> None:
    wrong, said = strike(deploy(lab), Site(lab, tmp_path), point, tmp_path / "mailbox")
    assert wrong == [], said
