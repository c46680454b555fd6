"""Fixtures that checks of the inventory share."""

from tests.unit.capacity.conftest import fleet  # noqa: F401  a fixture
