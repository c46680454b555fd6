"""A lab for the tests, beside the one that `./ops lab` uses: a test may break its twins without breaking anybody's rehearsal.

Each of the processes that run tests side by side has its own. It is made once a session and taken down at its end; LAB_KEEP=1 leaves it up, which makes the next session faster.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from lab.lab import Lab
from lab.run import CHECKOUT, locked
from lab.twin import Twin


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Twins of node1 and node2, as the checkout's own inventory describes them."""
    root = CHECKOUT / ".lab" / "tests" / os.environ.get("PYTEST_XDIST_WORKER", "one")
    with locked(root / "session.lock"):  # a second session waits for the first
        made = Lab(root, CHECKOUT / "hosts")
        made.up()
        try:
            yield made
        finally:
            if os.environ.get("LAB_KEEP") != "1":
                made.down()


@pytest.fixture
def fresh(lab: Lab) -> Callable[[str], Twin]:
    """Give a twin, by its host's name, as it was at first; no other one has anything of ours, which would be of the same pool."""

    def deployed(name: str) -> bool:
        return lab.twin(name).exec("test -e /opt/lodger", check=False).returncode == 0

    def reset(name: str) -> Twin:
        lab.up()
        lab.reset([name, *(other for other in lab.names if other != name and deployed(other))])
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
