"""Pydantic's errors in words for the person who wrote the file: what stands there, and what is accepted instead.

What is accepted is read from the schema itself, so that a message can not disagree with it.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError

from lodger.inventory.strict_yaml import Document, Loc
from lodger.inventory.values import Checked


def dotted(loc: Loc) -> str:
    """Return a path as people write it: ``workers.a.gpus[3]``, ``neighbours[vllm.service].kind``."""
    text = ""
    for part in loc:
        plain = isinstance(part, str) and re.fullmatch(r"[\w-]+", part)
        text += f".{part}" if plain else f"[{part}]"
    return text.removeprefix(".")


def explain(error: ValidationError, model: type[BaseModel], doc: Document, prefix: Loc = ()) -> Iterator[tuple[Loc, str]]:
    """Yield the path and the mistake, in words, of each error that ``model`` found in ``doc``, or below ``prefix`` in it."""
    meant_keys: set[Loc] = set()
    # Unknown keys first: a mistyped key is one mistake, not also the absence of the right one.
    for item in sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden"):
        loc: Loc = tuple(item["loc"])
        of_key = loc[-1:] == ("[key]",)
        if of_key:
            loc = loc[:-1]
        shape = _shape(model, loc, of_key=of_key)
        here = (*prefix, *loc)
        match item["type"]:
            case "extra_forbidden":
                parent = _shape(model, loc[:-1]).model
                keys = list(parent.model_fields) if parent else []
                close = difflib.get_close_matches(str(loc[-1]), keys, n=1)
                meant = f", did you mean {close[0]}?" if close else ""
                meant_keys.update((*loc[:-1], key) for key in close)
                text = f"is not a key here{meant}; accepted: {', '.join(keys)}"
            case "missing":
                if loc in meant_keys:
                    continue
                text = f"is missing; accepted: {shape.accepts}"
            case _:
                value = loc[-1] if of_key else item["input"]
                written = doc.text(here)
                text = f"cannot be {_shown(value, None if of_key else written)}; accepted: {shape.accepts}"
                if shape.wants_text and isinstance(value, int | float) and not isinstance(value, bool):
                    text += f' (as text, in quotes: "{written or value}")'
        yield here, text


def _shown(value: object, written: str | None) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {written or value}"
        case str():
            return f'"{value if len(value) <= 60 else value[:57] + "..."}"'
        case dict():
            return "a mapping"
        case _:
            return "a list"


@dataclass(frozen=True)
class _Shape:
    """What the schema says about one place."""

    accepts: str
    model: type[BaseModel] | None = None
    wants_text: bool = False


def _shape(model: type[BaseModel], loc: Loc, *, of_key: bool = False) -> _Shape:
    annotation: Any = model
    extra: tuple[Any, ...] = ()
    for depth, part in enumerate(loc):
        annotation, _, _ = _plain(annotation)
        last = depth == len(loc) - 1
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            info = annotation.model_fields.get(str(part))
            if info is None:
                return _Shape("nothing")
            annotation, extra = info.annotation, tuple(info.metadata)
        elif get_origin(annotation) is dict:
            annotation, extra = get_args(annotation)[0 if of_key and last else 1], ()
        else:
            annotation, extra = get_args(annotation)[0] if get_args(annotation) else Any, ()
    annotation, metadata, optional = _plain(annotation)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    accepts = _accepts(annotation, (*extra, *metadata)) + (", or nothing" if optional else "")
    return _Shape(accepts, annotation if is_model else None, annotation is str)


def _plain(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Take ``Annotated`` and ``| None`` off: the type itself, its metadata, whether None is allowed."""
    metadata: tuple[Any, ...] = ()
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata += tuple(more)
        elif get_origin(annotation) in (Union, types.UnionType):
            (annotation,) = (a for a in get_args(annotation) if a is not types.NoneType)
            optional = True
        else:
            return annotation, metadata, optional


def _accepts(annotation: Any, metadata: tuple[Any, ...]) -> str:
    for item in metadata:
        if isinstance(item, Checked):
            return item.accepts
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if origin is tuple:
        inner, inner_metadata, _ = _plain(get_args(annotation)[0])
        return f"a list, each item {_accepts(inner, inner_metadata)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"a mapping with the keys {', '.join(annotation.model_fields)}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(annotation, "a mapping") + _bounds(metadata)


def _bounds(metadata: tuple[Any, ...]) -> str:
    words = []
    for item in metadata:
        bounds = item.metadata if hasattr(item, "metadata") else [item]
        for bound in bounds:
            match bound:
                case annotated_types.Ge(ge=low):
                    words.append(f"at least {low}")
                case annotated_types.Gt(gt=low):
                    words.append(f"above {low}")
                case annotated_types.Le(le=high):
                    words.append(f"at most {high}")
                case annotated_types.Lt(lt=high):
                    words.append(f"below {high}")
    return " " + " and ".join(words) if words else ""
