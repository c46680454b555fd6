"""Rules about parsers: what a family needs is what the engine has."""

import re
from pathlib import Path

import pytest

from lodger.engines.sglang.lint.parsers import _PARSERS
from lodger.engines.sglang.options import options
from tests.unit.lint.support_lint import Edit, errors, found


def test_every_parser_that_a_rule_advises_is_one_of_the_engines() -> None:
    for setting, index in (("reasoning-parser", 0), ("tool-call-parser", 1)):
        advised = {word for parsers in _PARSERS.values() for word in re.findall(r"[a-z][\w-]+", parsers[index] or "")}
        assert advised - {"or", "from", "on"} <= set(options()["choices"][f"--{setting}"])


@pytest.mark.parametrize(
    ("family", "reasoning", "tool"),
    [("deepseek_v32", "deepseek-v3", "deepseekv32"), ("kimi_k25", "kimi_k2", "kimi_k2"), ("minimax_m2", "minimax-append-think", "minimax-m2"),
     ("hy_v3", "hunyuan", "hunyuan"), ("step3p5", "step3p5", "step3p5"), ("glm_moe_dsa", "glm45", "glm47"), ("kimi_k2", None, "kimi_k2")],
)  # fmt: skip
def test_a_family_without_its_parsers_is_told_which(family: str, reasoning: str | None, tool: str, tmp_path: Path) -> None:
    hits = found(
        tmp_path, f"config: {{model_type: {family}}}\npools: {{p: {{reasoning_parser: null, tool_call_parser: null}}}}"
    )
    told = {number: [hit.instead for hit in hits[number]] for number in ("L026", "L027", "L038")}
    assert told == {
        "L026": [f"reasoning_parser: {reasoning}"] * bool(reasoning),
        "L027": [f"tool_call_parser: {tool}"],
        "L038": [],
    }


def test_pitfall_6_tool_calls_without_a_parser(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "    tool_call_parser: qwen3_coder", "    #")
    (one,) = errors(hosts)
    assert (one.rule, one.instead) == ("L027", "tool_call_parser: qwen3_coder")
    assert (hosts / "fleet.yml").read_text().splitlines()[one.line - 1] == "  qwen38:", "where the setting would stand"
