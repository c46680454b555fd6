"""Paths of the host stand in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodger.checkout import CODE
from lodger.host import paths

OURS = ("/opt/lodger", "/var/lib/lodger", "/etc/lodger", "/etc/systemd/system", "/etc/motd.d")
PRODUCT = [path for path in sorted(CODE.glob("lodger/**/*.py")) if path != Path(paths.__file__)]
TEMPLATES = sorted(path for path in CODE.glob("templates/*") if path.is_file())


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that a module uses; what only tells a reader something is none."""
    tree = ast.parse(source)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value


def test_the_search_sees_what_it_looks_for() -> None:
    source = '"""/opt/lodger"""\nx = f"{a}/opt/lodger"\ny: str = r"b/etc/lodger"\n"""/opt/lodger, told."""\n'
    assert {line for line, text in texts(source) if any(path in text for path in OURS)} == {2, 3}
    assert set(OURS) == {paths.ROOT, paths.VAR, paths.ETC, paths.UNITS, paths.MOTD}
    assert len(PRODUCT) > 100
    assert len(TEMPLATES) > 5


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(CODE)))
def test_no_module_writes_a_path_of_the_host_out(path: Path) -> None:
    found = [f"{line}: {text.strip()[:80]}" for line, text in texts(path.read_text()) if any(one in text for one in OURS)]
    assert found == [], "lodger/host/paths.py has it"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_writes_a_path_of_the_host_out(path: Path) -> None:
    assert [one for one in OURS if one in path.read_text()] == [], "let it be given: lodger/host/paths.py has it"
