"""Runs on several hosts at once, and how the operator stops them."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lodger.inventory import Host

T = TypeVar("T")

stop = threading.Event()
"""Set once the operator asks a run to stop (Ctrl-C or SIGTERM)."""

_UNDOING = "stopping: what this run did is undone first; press Ctrl-C twice more to leave at once, half done"


def side_by_side(hosts: Sequence[Host], act: Callable[[Host], T], *, stopping: str = _UNDOING) -> list[T]:
    """Return what ``act`` returns for each host, run at the same time; Ctrl-C and SIGTERM ask all of them to stop.

    ``stopping`` is the line that is shown then.
    """

    def ask(number: int, _: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)  # the third signal ends the process at once
        sys.stderr.write(f"\n{'press Ctrl-C once more to leave at once' if stop.is_set() else stopping}\n")
        stop.set()

    before = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
            return list(pool.map(act, hosts))
    finally:
        for number, handler in before:
            signal.signal(number, handler)
