"""SGLang's command line: the options of the version that is known, and what an inventory adds to it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from lodger.inventory import EngineSettings


@cache
def options() -> dict[str, Any]:
    """Return what the known version accepts: ``version``, ``flags``, ``choices``, ``deprecated``, ``gone``."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "0.5.19.json").read_text(encoding="utf-8"))
    return data


def option(settings: EngineSettings, name: str) -> str | None:
    """Return the value of a further option, "" for one without, None when it is not given. Of two the engine takes the last."""
    found = None
    arguments = settings.extra_args
    for position, argument in enumerate(arguments):
        if argument == name:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
            found = "" if value.startswith("--") else value
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found
