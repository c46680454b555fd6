"""The house: sizes, names and rooms, as CONTRIBUTING.md says them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

import lodger.states
from lodger.checkout import CODE
from lodger.plans.expand import expand, names
from lodger.plans.runbook import parse
from lodger.states import registry
from lodger.states.target import Target, TargetRelease
from tests.unit.plans.test_runbook import FLEET, NODE2

PRODUCT = [*sorted(CODE.glob("lodger/**/*.py")), CODE / "tasks.py", *sorted(CODE.glob("bench/**/*.py"))]
TESTS = sorted(CODE.glob("tests/**/*.py"))


def test_a_module_is_at_most_400_lines() -> None:
    lines = {str(path.relative_to(CODE)): len(path.read_text().splitlines()) for path in (*PRODUCT, *TESTS)}
    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_a_function_of_the_product_is_at_most_60_lines() -> None:
    long = [
        f"{path.relative_to(CODE)}:{node.lineno} {node.name} {node.end_lineno - node.lineno + 1}"
        for path in PRODUCT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None and node.end_lineno - node.lineno >= 60
    ]
    assert long == []


def test_a_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in CODE.glob("lodger/**/*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(CODE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_unit_tests_stand_in_the_rooms_of_what_they_test() -> None:
    rooms = {path.relative_to(CODE / "lodger").parent for path in CODE.glob("lodger/**/*.py")}
    elsewhere = {path.relative_to(CODE / "tests/unit").parent for path in CODE.glob("tests/unit/**/test_*.py")} - rooms
    assert elsewhere == set()


def template() -> str:
    """Return the class with which CONTRIBUTING.md has a new state begin."""
    _, _, rest = (CODE / "CONTRIBUTING.md").read_text().partition("   ```python\n")
    return textwrap.dedent(rest.partition("   ```\n")[0])


def test_a_new_state_is_one_file_that_nothing_else_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class is the page's; with its witness and its case that is three files."""
    (tmp_path / "tea_ready.py").write_text(template())
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(CODE / "pyproject.toml"), str(tmp_path)], check=False
    )
    assert linted.returncode == 0
    monkeypatch.setattr(lodger.states, "__path__", [*lodger.states.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_FOUND", dict(registry.states()))
    registry.states.cache_clear()
    try:
        book = parse("---\ntitle: T\n---\n# T\n\n```state\nstate: tea_ready\n```\n", "t", "t.md")
        assert names(expand(book, Target(FLEET, NODE2, TargetRelease()))) == ["tea_ready(node2)"]
    finally:
        sys.modules.pop("lodger.states.tea_ready", None)
        monkeypatch.undo()
        registry.states.cache_clear()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "README-ops.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(CODE)) for path in sorted(CODE.glob("docs/**/*.md"))),
    ],
)
def test_every_module_that_a_page_names_is_there(page: str) -> None:
    known = [
        f"/{path.relative_to(CODE)}" for folder in ("lodger", "tests", "lab", "bench") for path in (CODE / folder).rglob("*.py")
    ]
    named = re.findall(r"[a-z_0-9/]+/[a-z_0-9]+\.py\b", (CODE / page).read_text())
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []
