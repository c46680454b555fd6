"""What the tests of inventory share."""

import shutil
from pathlib import Path

import pytest

from tests.unit.inventory.support_inventory import HOSTS, Edit


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    folder = tmp_path / "hosts"
    folder.mkdir()
    for file in HOSTS.glob("*.yml"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture
def edit(hosts: Path) -> Edit:
    def replace(file: str, old: str, new: str) -> None:
        path = hosts / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new))

    return replace
