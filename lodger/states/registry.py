"""Every state that a runbook can name. A state registers itself; nothing else names it.

    @state("image_present", each="image")
    class ImagePresent(State):
        @classmethod
        def of(cls, target: Target, item: str) -> ImagePresent: ...

Files of this package are searched for such lines: a new file is all that a new state needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lodger.states
from lodger.states.base import State
from lodger.states.target import Target


class Wired(Protocol):
    """A state class that can make itself from a target, for one item of its block's ``each``."""

    @classmethod
    def of(cls, target: Target, item: Any) -> State:
        """Return the state for ``item``."""
        ...


@dataclass(frozen=True)
class Registered:
    """A state as runbooks name it.

    ``each`` is what a block with it is repeated for, "" for once a host. ``needs_running``: it is left
    out for a paused worker, because it starts, stops or checks a running one. ``brings_back``: its item serves once it is done;
    ``undo_brings_back``: its item serves again once it is undone.
    """

    name: str
    each: str
    make: Callable[[Target, Any], State]
    needs_running: bool = False
    brings_back: bool = False
    undo_brings_back: bool = False


_FOUND: dict[str, Registered] = {}
W = TypeVar("W", bound=type[Wired])


def state(
    name: str, *, each: str = "", needs_running: bool = False, brings_back: bool = False, undo_brings_back: bool = False
) -> Callable[[W], W]:
    """Register a class as the state ``name``; see Registered."""

    def register(cls: W) -> W:
        assert name not in _FOUND, f"two states are called {name}"  # noqa: S101  a bug, not an input
        _FOUND[name] = Registered(name, each, cls.of, needs_running, brings_back, undo_brings_back)
        return cls

    return register


@cache
def states() -> Mapping[str, Registered]:
    """Return every state by its name in runbooks."""
    return _Looked(lodger.states.__path__)


class _Looked(Mapping[str, Registered]):
    """The states of all modules in some folders; a module is imported when its state is needed: a task needs a few."""

    def __init__(self, folders: Iterable[str]) -> None:
        files = [path for folder in folders for path in Path(folder).glob("*.py")]
        registers = re.compile(r'^@state\(\s*"(\w+)"', re.MULTILINE)
        self._module = {name: path.stem for path in files for name in registers.findall(path.read_text())}

    def __getitem__(self, name: str) -> Registered:
        if name not in _FOUND and name in self._module:
            import_module(f"{lodger.states.__name__}.{self._module[name]}")
        return _FOUND[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._module)

    def __len__(self) -> int:
        return len(self._module)
