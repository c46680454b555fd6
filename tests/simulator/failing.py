"""What tests of an engine that fails have in common."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lab import faults
from lab.engine.sglang.control import REREAD_SECONDS

from .engine_lab import Engine, Lab, filler

LONG = filler("long", 60_000)
CLOCK = 400


def ended(engine: Engine, code: int, *words: str) -> None:
    """The engine ended with this code, and its log has these words in order."""
    assert engine.exit_code() == code, engine.log[-1500:]
    at = 0
    for word in words:
        found = engine.log.find(word, at)
        assert found >= 0, f"{word!r} is not in its place in:\n{engine.log[-3000:]}"
        at = found


def set_fault(folder: Path, name: str, **values: Any) -> None:
    """Switch a fault on, and return when every engine must have read it: at this clock a prompt takes less than a look at it."""
    faults.set_fault(folder, name, **values)
    time.sleep(3 * REREAD_SECONDS)


def survives_long(engine: Engine) -> bool:
    try:
        status, _ = engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4})
    except (OSError, IndexError):
        return False
    return status == 200


def accept_length(engine: Engine) -> float:
    engine.chat("Explain in detail how a cache works.", max_tokens=500)
    return float(engine.json("/server_info")["internal_states"][0]["avg_spec_accept_length"])


def start(lab: Lab) -> Engine:
    return lab.start(lab.seed_options())
