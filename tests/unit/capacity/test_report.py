"""A prediction as bars, numbers, a drawing and JSON."""

import dataclasses
import io
import json
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from lodger.capacity import draw
from lodger.inventory import Fleet
from tests.unit.capacity.support_capacity import subject


def test_a_goal_that_nothing_reaches_is_said(fleet: Fleet) -> None:
    about = subject(fleet)
    about = dataclasses.replace(about, settings=about.settings.model_copy(update={"context_length": 10_000_000}))
    assert about.solve("concurrency") == []
    console = Console(width=120, record=True, file=io.StringIO())
    draw.show(console, "node1 a", about, about.predict(), [])
    assert "no other settings give more" in console.export_text()


def test_it_is_shown_as_bars_and_numbers(fleet: Fleet) -> None:
    about = subject(fleet)
    console = Console(width=120, record=True, file=io.StringIO())
    draw.show(console, "node1 a", about, about.predict(), about.options())
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
    data = json.loads(json.dumps(draw.as_json("a", about, about.predict(), about.options())))
    assert sum(data["parts_mib"].values()) == pytest.approx(24576, abs=6)
    assert (data["requests_at_once"], data["state_slots_per_request"], data["reconstructed"]) == (7, 5, True)
