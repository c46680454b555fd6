"""The list of guards that are taken out to see their tests fail names text that is there, and tests that are there."""

from __future__ import annotations

import re

import pytest

from lab.run import CHECKOUT
from tests.twins.guards import GUARDS
from tests.twins.guards.guard import Guard


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.against)
def test_what_a_guard_names_is_there(guard: Guard) -> None:
    places = [(path, path.read_text().count(guard.text)) for path in guard.files]
    assert [count for _, count in places] == [1], f"the guard must stand in one place: {places}"
    path, _, name = guard.test.partition("::")
    assert re.search(rf"^def {re.escape(name.partition('[')[0])}\(", (CHECKOUT / path).read_text(), re.MULTILINE), guard.test
