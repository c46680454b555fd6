"""What the tests of capacity share."""

import shutil
from pathlib import Path

import pytest

from lodger import inventory
from lodger.inventory import Fleet
from tests.unit.capacity.support_capacity import HOSTS


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    shutil.copytree(HOSTS, tmp_path / "hosts")
    return inventory.load(tmp_path / "hosts")
