"""A machine whose engines fail. Modules in which they serve make one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import faults

from .engine_lab import Lab, running_lab
from .failing import CLOCK


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("failures"), clock=CLOCK) as lab:
        yield lab


@pytest.fixture
def clean(lab: Lab) -> Iterator[None]:
    """Have neither faults nor engines when the test is over."""
    yield
    faults.clear_fault(lab.control)
    lab.close()
