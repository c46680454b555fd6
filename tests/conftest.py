"""Tests run side by side in some processes; one that is marked `alone` has the machine to itself for as long as it takes."""

from __future__ import annotations

import fcntl
import importlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_LOCKS = Path(__file__).resolve().parent.parent / ".lab" / "turns"


# Beside twins the machine is busy: how long an example took says nothing of the code.
settings.register_profile("lodger", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lodger")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures or breaks what all tests share, and runs while no other does")


# Whose modules share what takes long to make: one process runs them all, in the order of their names.
_TOGETHER = ("tests/twins/pool",)
# What takes longest, in this order, as the table at the end of a run says. It begins first, so that at the end only short modules
# are left to even out. What wants to be alone comes last: nobody has to wait for it then.
_LONG = (
    "tests/twins/pool",
    "tests/twins/test_deploy.py",
)
_LAST = ("tests/twins/lab/test_daemon.py",)


def scope(nodeid: str) -> str:
    """Return the module that a test is in, or the folder whose modules stay together."""
    module = nodeid.partition("::")[0]
    return next((folder for folder in _TOGETHER if module.startswith(f"{folder}/")), module)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> tuple[int, bool]:
        where = scope(item.nodeid)
        order = _LONG.index(where) if where in _LONG else len(_LONG) + (where in _LAST)
        return order, not where.startswith("tests/twins")

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole scopes (a hook of xdist)."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)
    scheduling._split_scope = scope
    return scheduling


_TOOK: dict[str, float] = {}
_WORTH_TELLING = 10.0  # seconds


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    where = scope(report.nodeid)
    _TOOK[where] = _TOOK.get(where, 0.0) + report.duration


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with _turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(*, alone: bool) -> Generator[None, None, None]:
    _LOCKS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        door, room = (stack.enter_context((_LOCKS / name).open("w")) for name in ("door", "room"))
        # Whoever waits to be alone keeps the door, so that nobody else slips in meanwhile.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield


_SAID: pytest.StashKey[list[tuple[str, str]]] = pytest.StashKey()


def say_at_the_end(config: pytest.Config, title: str, text: str) -> None:
    """Have a table stand before the summary of the whole run, whichever process found it."""
    if hasattr(config, "workeroutput"):
        config.workeroutput.setdefault("said", []).append((title, text))
    else:
        config.stash.setdefault(_SAID, []).append((title, text))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what another process has to say (a hook of xdist)."""
    for title, text in getattr(node, "workeroutput", {}).get("said", []):
        say_at_the_end(node.config, title, text)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if hasattr(config.option, "numprocesses") and config.option.numprocesses:
        terminalreporter.section("seconds of what took longest (for _LONG in tests/conftest.py)")
        for where, seconds in sorted(_TOOK.items(), key=lambda one: -one[1]):
            if seconds > _WORTH_TELLING:
                terminalreporter.write_line(f"{seconds:6.0f}  {where}")
    for title, text in config.stash.get(_SAID, []):
        terminalreporter.section(title)
        terminalreporter.write_line(text)
