"""The capacity model against published figures, for every kind of model, and what it learns from a running engine."""

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from lodger import inventory
from lodger.capacity import NoRoom, advice, draw, report
from lodger.inventory import Fleet
from tests.unit.capacity.support_capacity import HOSTS, subject


def test_every_advice_gives_more_and_fits(fleet: Fleet) -> None:
    about = subject(fleet)
    now = advice.most(about)
    found = {option.change: option for option in advice.options(about)}
    assert found["mamba_ssm_dtype: bfloat16"].running > 2 * now.running
    assert found["kv_cache_dtype: fp8_e4m3"].tokens > 1.9 * now.tokens
    assert all(option.running > now.running or option.tokens > now.tokens for option in found.values())
    assert all(option.tokens >= about.engine.context_length and option.running >= 7 for option in found.values())
    assert sum(change.startswith("mamba_full_memory_ratio") for change in found) <= 2


def test_solving_for_one_keeps_the_other(fleet: Fleet) -> None:
    about = subject(fleet)
    for exact in advice.solve(about, "context"):
        assert exact.running >= about.engine.max_running_requests
        assert exact.tokens >= about.predict().tokens
    exact, short = advice.solve(about, "concurrency")
    assert exact.tokens >= about.engine.context_length
    assert about.predict().running < exact.running < short.running
    assert all(("less room" in one.price) is ("mem_fraction_static" in one.change) for one in (exact, short))
    assert "less room" in exact.price


def test_a_goal_that_nothing_reaches_is_said(fleet: Fleet) -> None:
    about = subject(fleet)
    about = dataclasses.replace(about, engine=about.engine.model_copy(update={"context_length": 10_000_000}))
    assert advice.solve(about, "concurrency") == []
    console = Console(width=120, record=True, file=io.StringIO())
    draw.show(console, "node1 a", about, about.predict(), [])
    assert "no other settings give more" in console.export_text()


def test_it_is_shown_as_bars_and_numbers(fleet: Fleet) -> None:
    about = subject(fleet)
    console = Console(width=120, record=True, file=io.StringIO())
    draw.show(console, "node1 a", about, about.predict(), advice.options(about))
    text = console.export_text()
    bar = next(line for line in text.splitlines() if line.startswith("██"))
    assert len(bar.strip()) == 60
    for said in ("neighbours", "1,024 MiB", "7 requests at once (7 declared, 7 admitted)", "277,387 tokens", "reconstructed"):
        assert said in text


def test_the_drawing_has_one_bar_a_worker_and_its_rectangles_add_up(fleet: Fleet) -> None:
    predicted = subject(fleet).predict()
    root = ET.fromstring(draw.svg([("node1 a", predicted), ("node2 <b>", predicted)]))  # noqa: S314  our own text
    shape = "{http://www.w3.org/2000/svg}"
    bars = [item for item in root.iter(f"{shape}rect") if item.get("height") == "26"]
    widths = [float(item.get("width") or 0) for item in bars]
    assert sum(widths) == pytest.approx(2 * 810, abs=1)
    assert any(item.text == "node2 <b>" for item in root.iter(f"{shape}text"))


def test_json_has_every_figure(fleet: Fleet) -> None:
    about = subject(fleet)
    data = json.loads(json.dumps(draw.as_json("a", about, about.predict(), advice.options(about))))
    assert sum(data["parts_mib"].values()) == pytest.approx(24576, abs=6)
    assert (data["requests_at_once"], data["state_slots_per_request"], data["reconstructed"]) == (7, 5, True)


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
        report.of(broken, [broken.hosts["node1"]])
    assert caught.value.host == "node1 a"
    assert caught.value.hint
