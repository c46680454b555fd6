"""What the tests of lint share."""

import shutil
from pathlib import Path

import pytest

from tests.unit.lint.support_lint import HOSTS, Edit


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    shutil.copytree(HOSTS, tmp_path / "hosts")
    return tmp_path / "hosts"


@pytest.fixture
def edit(hosts: Path) -> Edit:
    def replace(file: str, old: str, new: str) -> None:
        text = (hosts / file).read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
        (hosts / file).write_text(text.replace(old, new))

    return replace
