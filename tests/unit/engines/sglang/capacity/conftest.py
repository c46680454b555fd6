"""What the tests of capacity share."""

from tests.unit.capacity.conftest import fleet  # noqa: F401  a fixture
