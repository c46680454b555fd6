"""A twin at the old driver."""

from __future__ import annotations

import pytest

from lab.driver import faults
from lab.lab import Lab
from lab.twin import Twin
from tests.twins.driver.upgrade import (
    OLD,
    driver,
    everybody_is_back,
)


@pytest.fixture(scope="module")
def first(lab: Lab) -> Twin:
    """node1 with the old driver, the image service and the hand-made container on its GPUs."""
    lab.reset(["node1"], driver=OLD)
    return lab.twin("node1")


@pytest.fixture
def old(lab: Lab, first: Twin) -> Twin:
    """The same: a test that ended with another driver costs a reset, one that left everything as it was does not."""
    faults.switch_off(first)
    if driver(first) != OLD or not everybody_is_back(first):
        lab.reset(["node1"], driver=OLD)
    return first
