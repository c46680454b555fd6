"""Rules about what takes thinking and tool calls out of the text."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import re
from collections.abc import Iterator

from lodger.engines.sglang.image import is_known
from lodger.engines.sglang.lint.rules import rule
from lodger.engines.sglang.options import options
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import View

# Family (model_type in config.json) -> its reasoning and its tool parser in SGLang, None where not every model of it needs one
# (SGLang's cookbook). Without them thinking and tool calls stay in the text.
_PARSERS: dict[str, tuple[str | None, str]] = {
    r"qwen3_5(_moe)?|qwen3_8": ("qwen3", "qwen3_coder"),
    r"gpt_oss": ("gpt-oss", "gpt-oss"),
    r"glm4_moe": ("glm45", "glm45, or glm47 from GLM-4.7 on"),
    r"glm4_moe_lite|glm_moe_dsa": ("glm45", "glm47"),
    r"deepseek_v32": ("deepseek-v3", "deepseekv32"),
    r"deepseek_v4": ("deepseek-v4", "deepseekv4"),
    r"kimi_k2": (None, "kimi_k2"),
    r"kimi_k25": ("kimi_k2", "kimi_k2"),
    r"minimax_m2": ("minimax-append-think", "minimax-m2"),
    r"minimax_m3(_vl)?": ("minimax-m3", "minimax-m3"),
    r"mimo_v2(_flash)?": ("mimo", "mimo"),
    r"hy_v3": ("hunyuan", "hunyuan"),
    r"step3(_vl)?": ("step3", "step3"),
    r"step3p5": ("step3p5", "step3p5"),
    r"interns1": ("interns1", "interns1"),
}


def _needed(family: str) -> tuple[str | None, str | None]:
    """Return the reasoning and the tool parser that every model of ``family`` needs, None where that is not known."""
    return next((parsers for pattern, parsers in _PARSERS.items() if re.fullmatch(pattern, family)), (None, None))


def _choices(setting: str) -> list[str]:
    found: list[str] = options()["choices"][f"--{setting.replace('_', '-')}"]
    return found


def _parser(view: View, setting: str, index: int, without: str) -> Iterator[Hit]:
    for served in view.workers:
        given = getattr(served.settings, setting)
        family = served.target.model_type if served.target else ""
        needs, choices = _needed(family)[index], _choices(setting)
        if given is None and needs:
            yield Hit(
                served.at(setting),
                f"{served.pool.model} ({family}) needs a parser that is not declared: {without}; the engine's log "
                "only hints at it",
                f"{setting}: {needs}",
            )
        elif given is not None and is_known(served.image) and given not in choices:
            yield Hit(
                served.at(setting),
                f"the engine has no {setting} {given}, and would not start",
                f"{setting}: {needs}" if needs else f"one of {', '.join(choices)}",
            )


@rule(
    "L026",
    Severity.ERROR,
    bad=["pools: {p: {reasoning_parser: null}}", "pools: {p: {reasoning_parser: qwen4}}"],
    good=["pools: {p: {reasoning_parser: null}}\nconfig: {model_type: llama}", "pools: {p: {reasoning_parser: auto}}"],
)
def reasoning_parser_missing(view: View) -> Iterator[Hit]:
    """A model that thinks has no reasoning parser, or one that the engine does not have."""
    yield from _parser(view, "reasoning_parser", 0, "its thinking would stand in `content`")


@rule(
    "L027",
    Severity.ERROR,
    bad=["pools: {p: {tool_call_parser: null}}", "pools: {p: {tool_call_parser: qwen9}}"],
    good=["pools: {p: {tool_call_parser: null}}\nconfig: {model_type: llama}", "pools: {p: {tool_call_parser: auto}}"],
)
def tool_parser_missing(view: View) -> Iterator[Hit]:
    """A model that calls tools has no tool parser, or one that the engine does not have."""
    yield from _parser(view, "tool_call_parser", 1, "its calls would stand as text in `content` and `tool_calls` be null")


_UNPARSED = "pools: {p: {reasoning_parser: null, tool_call_parser: null}}\nconfig: {model_type: MODEL}"


@rule(
    "L038",
    Severity.WARNING,
    bad=[
        _UNPARSED.replace("MODEL", family) for family in ("deepseek_v3", "qwen3_moe", "llama", "nemotron_h", "hunyuan_v1_moe")
    ],
    good=[
        *(_UNPARSED.replace("MODEL", family) for family in ("gemma3", "phi3", "t5")),
        "pools: {p: {tool_call_parser: null}}\nconfig: {model_type: deepseek_v3}",
        "pools: {p: {reasoning_parser: null}}\nconfig: {model_type: deepseek_v3}",
    ],
)
def no_parser_of_its_name(view: View) -> Iterator[Hit]:
    """No parser at all is declared, and the engine has some for models of this name."""
    for served in view.workers:
        family = served.target.model_type if served.target else ""
        declared = served.settings.reasoning_parser or served.settings.tool_call_parser
        namesakes = {
            name for setting in ("reasoning_parser", "tool_call_parser") for name in _choices(setting) if _of(family, name)
        }
        if not declared and namesakes and not any(_needed(family)):
            yield Hit(
                served.at("reasoning_parser"),
                f"{served.pool.model} ({family}) has no parser: if it thinks or calls tools, that would stand in `content`; of "
                f"its name the engine has {', '.join(sorted(namesakes))}",
                "the parsers that the model's card names, or auto",
            )


def _of(family: str, parser: str) -> bool:
    """Whether ``parser`` begins like ``family``, and does not say another generation of it."""
    name = re.match(r"[a-z]{3,}", family)
    if name is None or not parser.startswith(name[0]):
        return False
    ours, its = (re.search(r"\d", word) for word in (family, parser))
    return ours is None or its is None or ours[0] == its[0]
