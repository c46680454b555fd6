"""An engine's words stand in its own room: its options, endpoints, log lines and fields are searched for everywhere else."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from lodger.checkout import CODE
from lodger.engines.sglang import log
from lodger.engines.sglang.options import options
from lodger.engines.sglang.router_api import MUST_MATCH
from lodger.inventory import schema

ROOM = (CODE / "lodger/engines/sglang", CODE / "templates/sglang")
OTHERS = sorted(
    file
    for folder in (CODE / "lodger", CODE / "templates")
    for file in folder.rglob("*")
    if file.is_file() and file.suffix != ".pyc" and not any(file.is_relative_to(room) for room in ROOM)
)

# What an inventory says is the inventory's own, whatever engine reads it.
KEYS = {
    key for one in vars(schema).values() if isinstance(one, type) and issubclass(one, BaseModel) for key in one.model_fields
}

# Word -> where else it may stand, and why.
ALLOWED: dict[str, tuple[str, str]] = {
    "--host": ("", "the option of Lodger's own tasks, in hints"),
    "--config": ("templates/fetch.sh", "an option of curl"),
    "api_key": ("lodger/engines/client.py", "what every server of this API asks for"),
    "worker_urls": ("lodger/release/render.py", "a value of ours that a router's template takes"),
    "sglang": ("lodger/engines/__init__.py lodger/inventory/schema.py", "who it is; what a key of the inventory sets"),
}


def flags() -> set[str]:
    router = json.loads((CODE / "tests/unit/data/router-options.json").read_text())
    return {*options()["flags"], *router}


def named(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@cache
def endpoints() -> set[str]:
    """Return the paths that workers and routers are asked at: they stand in what asks."""
    asking = [ROOM[0] / "router_api.py", *ROOM[0].glob("smoke*.py")]
    constants = [
        node.value
        for file in asking
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {found for text in constants for found in re.findall(r"(?<![\w.*<-])/[a-z]\w+(?:/\w+)*", text)}


# Words of one part are too common: a port is everybody's.
WORDS = {
    *flags(),
    *(name for name in map(named, flags()) if "_" in name),
    *(name for name in MUST_MATCH if "_" in name),
    *("scheduler_e2e", "num_running_reqs", "max_total_num_tokens", "effective_max_running_requests_per_dp"),
} - KEYS
LINES = [*(pattern for pattern, _ in log.PHASES), log.LINES.requests, r"\bsglang:\w+"]


def found(text: str) -> Iterator[str]:
    """Yield each of the engine's words in ``text``."""
    yield from (word for word in re.findall(r"(?<![\w-])(?:--)?[a-z][\w-]*[a-z0-9]", text) if word in WORDS)
    yield from (path for path in endpoints() if re.search(rf"(?<!\w){re.escape(path)}(?![\w/-])", text))
    yield from (pattern for pattern in LINES if re.search(pattern, text))
    yield from re.findall(r"(?i)sglang", text.lower())


def allowed(word: str, file: Path) -> bool:
    where, _ = ALLOWED.get(word, ("nowhere", ""))
    return not where or str(file.relative_to(CODE)) in where.split()


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: str(file.relative_to(CODE)))
def test_nobody_else_speaks_the_engines_words(file: Path) -> None:
    assert {word for word in found(file.read_text(encoding="utf-8")) if not allowed(word, file)} == set()


def test_every_exemption_is_needed() -> None:
    used = {word for file in OTHERS for word in found(file.read_text(encoding="utf-8"))}
    assert set(ALLOWED) <= used
    assert len(ALLOWED) == 5, "an exemption more is a decision"


def test_the_words_are_those_of_the_engine() -> None:
    assert {"--mem-fraction-static", "--disable-circuit-breaker", "served_model_name", "log_requests_level"} <= WORDS
    assert {"/server_info", "/model_info", "/v1/loads", "/v1/models", "/workers", "/health", "/metrics"} <= endpoints()
    assert "mem_fraction_static" not in WORDS, "the inventory's own"


@pytest.mark.parametrize(
    "line",
    [
        "it was started with --language-model-only",
        "ask f'{url}/server_info'",
        "told['served_model_name']",
        "if 'The server is fired up' in log:",
        "grep 'Prefill batch'",
        "sglang:spec_accept_length",
        "an SGLang server",
    ],
)
def test_a_word_that_is_planted_is_found(line: str) -> None:
    assert list(found(line))
