"""A lab for the tests, beside the one that `./ops lab` uses: a test may break its twins without breaking anybody's rehearsal.

Each of the processes that run tests side by side has its own. It is made once a session and taken down at its end; LAB_KEEP=1 leaves it up, which makes the next session faster.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.run import CHECKOUT, locked
from lab.twin import Twin
from tests.twins.site import Fresh, Site, begin, others_deployed, ready


@pytest.fixture(scope="session")
def _made() -> Iterator[tuple[Lab, set[str]]]:
    """The process's lab, and which of its twins somebody may have used."""
    root = CHECKOUT / ".lab" / "tests" / os.environ.get("PYTEST_XDIST_WORKER", "one")
    with locked(root / "session.lock"):  # a second session waits for the first
        made = Lab(root, CHECKOUT / "hosts")
        kept = {name for name, state in made.status().items() if state != "absent"}
        made.up()
        try:
            yield made, kept
        finally:
            if os.environ.get("LAB_KEEP") != "1":
                made.down()


@pytest.fixture(scope="module")
def lab(_made: tuple[Lab, set[str]], request: pytest.FixtureRequest) -> Lab:
    """Twins of node1 and node2 as the checkout's own inventory describes them, and as they were at first when a module begins.

    A module whose tests begin with a reset, or do not mind, names the twins that it wants so: TWINS = ("node1",), or ().
    What a module before deployed on others would have a say in it all the same: those are reset too.
    """
    made, used = _made
    begin(made, used, getattr(request.module, "TWINS", made.names))
    return made


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    """The twins' inventory, for the test to change, and the tasks run against it."""
    return Site(lab, tmp_path)


@pytest.fixture
def fresh(lab: Lab) -> Fresh:
    """Give a twin, by its host's name, as it was at first; no other one has anything of ours."""

    def reset(name: str) -> Twin:
        lab.reset([name, *others_deployed(lab, name)])
        return lab.twin(name)

    return reset


@pytest.fixture
def node1(lab: Lab) -> Twin:
    """The twin of node1 as the tests before left it; a test that needs it untouched takes `fresh`."""
    return ready(lab, "node1")


@pytest.fixture
def node2(lab: Lab) -> Twin:
    """The twin of node2, in the same way."""
    return ready(lab, "node2")
