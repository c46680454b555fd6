"""What the tests of lint share."""

from tests.unit.lint.conftest import edit, hosts  # noqa: F401  fixtures
