"""Tests run side by side in some processes; one that is marked `alone` has the machine to itself for as long as it takes."""

from __future__ import annotations

import fcntl
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


# Modules that take longest, in this order. They begin first: at the end only short ones are left to even out.
_LONG = (
    "test_undo",
    "test_deploy",
    "test_pool",
    "test_twins",
    "test_interrupted",
    "test_broken",
    "test_refusals",
    "test_pause",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.stem
        return _LONG.index(name) if name in _LONG else len(_LONG), "twins" not in item.path.parts

    items.sort(key=rank)


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
    for title, text in config.stash.get(_SAID, []):
        terminalreporter.section(title)
        terminalreporter.write_line(text)
