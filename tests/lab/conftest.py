"""A lab for the tests, beside the one that `./ops lab` uses: a test may break its twins without breaking anybody's rehearsal.

Each of the processes that run tests side by side has its own. It is made once a session and taken down at its end; LAB_KEEP=1 leaves it up, which makes the next session faster.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from lab.lab import Lab
from lab.run import CHECKOUT, locked
from lab.twin import Twin
from tests.lab.site import altered, others_deployed

_made: list[Lab] = []


@pytest.fixture(scope="module", autouse=True)
def _nothing_left() -> None:
    """What a module before deployed would have a say in what this one deploys, and the driver it left would have this one refused."""
    for made in _made:
        if left := altered(made):
            made.up()
            made.reset(left)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Twins of node1 and node2, as the checkout's own inventory describes them."""
    root = CHECKOUT / ".lab" / "tests" / os.environ.get("PYTEST_XDIST_WORKER", "one")
    with locked(root / "session.lock"):  # a second session waits for the first
        made = Lab(root, CHECKOUT / "hosts")
        made.up()
        _made.append(made)
        try:
            yield made
        finally:
            if os.environ.get("LAB_KEEP") != "1":
                made.down()


@pytest.fixture
def fresh(lab: Lab) -> Callable[[str], Twin]:
    """Give a twin, by its host's name, as it was at first; no other one has anything of ours."""

    def reset(name: str) -> Twin:
        lab.up()
        lab.reset([name, *others_deployed(lab, name)])
        return lab.twin(name)

    return reset


@pytest.fixture
def node1(lab: Lab) -> Twin:
    """The twin of node1 as the tests before left it; a test that needs it untouched takes `fresh`."""
    lab.up()
    return lab.twin("node1")


@pytest.fixture
def node2(lab: Lab) -> Twin:
    """The twin of node2, in the same way."""
    lab.up()
    return lab.twin("node2")
