"""Quoting: how a value gets into a Compose file, a unit, a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lodger.checkout import CODE
from lodger.host import command

TEMPLATES = CODE / "templates"


# ---------------------------------------------------------------- quoting


class Ready(str):
    """Text that is quoted already."""

    __slots__ = ()


def compose_value(value: object) -> str:
    """Quote one value for a Compose file: JSON is YAML, and Compose replaces every ``$NAME`` unless it is doubled."""
    if isinstance(value, Ready):
        return value
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, with the name that the template got wrong
    if not isinstance(value, str | int | list):
        raise TypeError(f"a template prints {value!r}, which is neither text nor a whole number nor a list")
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")


def unit_text(value: object) -> str:
    """Quote one value for a unit setting of plain text: only ``%`` is special there."""
    return value if isinstance(value, Ready) else str(value).replace("%", "%%")


def shell_word(value: object) -> str:
    """Quote one value for a sh script: text, a number, or a list of words; each becomes one word."""
    if isinstance(value, Ready):
        return value
    return command.quote([str(one) for one in value] if isinstance(value, list | tuple) else [str(value)])


def render_script(template: str, **context: object) -> str:
    """Return a rendered sh script; every value is quoted for the shell, unless the template marks it `raw`."""
    return environment(shell_word).get_template(template).render(context)


def render_unit(template: str, **context: object) -> str:
    """Return a rendered unit file whose settings take plain text."""
    return environment(unit_text).get_template(template).render(context)


def exec_word(value: str) -> str:
    """Quote one word of a unit's ``Exec...=`` line: quotes, backslashes, ``%`` specifiers and ``$`` variables."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return Ready(f'"{escaped}"')


def word(value: float | str) -> str:
    """Return a number as a word of a command line; fractions with two digits at least, as people write them."""
    if isinstance(value, float):
        return f"{value:.2f}" if round(value, 2) == value else repr(value)
    return str(value)


@cache
def environment(quote: Callable[[object], str]) -> Environment:
    """Return the template environment whose values are quoted by ``quote``."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # nothing here is HTML; `finalize` quotes every value
    )
    environment.filters |= {"exec": exec_word, "raw": Ready, "word": word}
    return environment
