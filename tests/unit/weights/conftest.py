"""What the tests of weights share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.hub import commit
from lab.hub import server as hub_server
from lodger.weights import hub
from tests.unit.weights.support_fetch_script import FILES, SOURCE, Bench, Server


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    commits = {source: commit(source, SOURCE) for source in hub.HUBS}
    world = hub_server.World({SOURCE: {"commits": commits, "files": FILES}})
    server = Server(("127.0.0.1", 0), type("Bound", (hub_server.Handler,), {"world": world}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def bench(served: Server, tmp_path: Path) -> Bench:
    programs = tmp_path / "programs"
    programs.mkdir()
    one = Bench(served, tmp_path / "var" / "tiny", tmp_path / "models", programs)
    one.program("sleep", "exec $real 0")  # how long it waits for a hub is not looked at here
    one.faults()
    one.world.sent.clear()
    served.connections = 0
    return one
