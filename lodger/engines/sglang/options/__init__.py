"""SGLang's command line: what an inventory adds to it."""

from __future__ import annotations

from lodger.inventory import EngineSettings


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
