"""The capacity of whole hosts, as the task shows it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lodger import inventory
from lodger.capacity import NoRoom
from lodger.checks import capacity
from lodger.inventory import Fleet
from tests.unit.capacity.support_capacity import HOSTS


def test_the_task_prints_draws_and_learns(fleet: Fleet, tmp_path: Path) -> None:
    def ops(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "lodger", "capacity", "--hosts-dir", str(fleet.folder), *words]
        return subprocess.run(argv, cwd=HOSTS.parent, capture_output=True, text=True, check=False, timeout=60)

    done = ops("--host", "all", "--json", "--svg", str(tmp_path / "bars.svg"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["host"], len(one["workers"])) for one in found] == [("node1", 1), ("node2", 2)]
    assert (tmp_path / "bars.svg").read_text().startswith("<svg")

    done = ops("--host", "node1", "--learn", "a=250000", "--json")
    assert done.returncode == 0, done.stderr
    assert "the engine has an unknown number of requests and 250000 tokens" in done.stderr
    assert json.loads(done.stdout)[0]["workers"][0]["kv_tokens"] == pytest.approx(250_000, rel=0.001)

    for words in (
        ["--host", "node1", "--solve", "speed"],
        ["--host", "all", "--learn", "a=1"],
        ["--host", "node1", "--learn", "b=1"],
    ):
        done = ops(*words)
        assert done.returncode == 2
        assert "  hint: " in done.stderr


def test_the_task_says_which_worker_does_not_fit(fleet: Fleet) -> None:
    path = fleet.folder / "node1.yml"
    path.write_text(path.read_text().replace("gpus: [0, 1, 2, 3]", "gpus: [0]"))
    broken = inventory.load(fleet.folder)
    with pytest.raises(NoRoom) as caught:
        capacity.of(broken, [broken.hosts["node1"]])
    assert caught.value.host == "node1 a"
    assert caught.value.hint
