"""The witnesses are run by `./ops verify`, against a host; this file is what a plain pytest finds instead.

A run of the whole suite passes them over (the lab's tests run them against twins). Named on pytest's own command line
they fail, since there is no host to look at, and least of all the machine that pytest runs on.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    asked_for = any(path.is_relative_to(HERE) for path in named)
    return True if collection_path.is_relative_to(HERE) and not asked_for else None


@pytest.fixture(scope="session")
def host() -> NoReturn:
    pytest.fail("a witness needs a host to look at: run ./ops verify --host NAME", pytrace=False)


@pytest.fixture(scope="session")
def inventory_host() -> NoReturn:
    pytest.fail("a witness needs a host to look at: run ./ops verify --host NAME", pytrace=False)


@pytest.fixture(scope="session")
def worker_name() -> str:
    return "none"


@pytest.fixture(scope="session")
def paused_name() -> str:
    return "none"


@pytest.fixture(scope="session")
def neighbour_name() -> str:
    return "none"
