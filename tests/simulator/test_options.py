"""The engine's options: every one of the list is accepted with its type and choices, and refused as argparse refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.engine.sglang.options import DEPRECATED, REMOVED, catalogue, destination, human_readable_int, parse

from .engine_lab import SEED_OPTIONS

MODEL = ["--model-path", "/m"]
SAMPLES = {
    "str": "text",
    "int": "3",
    "float": "0.5",
    "human_readable_int": "2k",
    "loads": '{"a": 1}',
    "json_list_type": "[1]",
    "nullable_str": "none",
    "parse_cuda_graph_config_arg": '{"decode": {}}',
}
OPTIONS = catalogue()
BY_FLAG = {option["flags"][0]: option for option in OPTIONS}


def sample(option: dict[str, Any]) -> list[str]:
    """Return words that an option accepts as its value."""
    if option["nargs"] == 0:
        return []
    return [str(option["choices"][0]) if option["choices"] else SAMPLES[option["type"]]]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_there_are_as_many_options_as_the_real_one_has() -> None:
    assert len(OPTIONS) == 500


def test_every_option_is_accepted_under_each_of_its_names() -> None:
    for option in OPTIONS:
        for flag in option["flags"]:
            if flag in REMOVED or flag == "--config":
                continue
            words = [flag, *sample(option)] if option["flags"][0] == "--model-path" else [*MODEL, flag, *sample(option)]
            parse(words)


def test_every_option_left_out_has_its_default() -> None:
    values = parse(MODEL).values
    for option in OPTIONS:
        name = destination(option)
        shadows = option["flags"][0] in DEPRECATED and DEPRECATED[option["flags"][0]][0] != name
        if not shadows and name != "model_path":
            assert values[name] == option["default"], name


def test_every_list_of_choices_is_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    limited = [option for option in OPTIONS if option["choices"] and option["type"] == "str"]
    assert len(limited) > 60
    for option in limited:
        assert "invalid choice: 'no-such-choice'" in refusal([*MODEL, option["flags"][0], "no-such-choice"], capsys)


@pytest.mark.parametrize("kind", ["int", "float", "loads", "human_readable_int", "json_list_type"])
def test_every_type_is_enforced(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in OPTIONS:
        if option["type"] == kind and not option["choices"]:
            message = refusal([*MODEL, option["flags"][0], "{no"], capsys)
            assert message.startswith(f"sglang serve: error: argument {'/'.join(option['flags'])}:"), message


def test_every_deprecated_flag_warns_and_names_what_to_use_instead() -> None:
    for flag, (dest, constant, instead) in DEPRECATED.items():
        args = parse([*MODEL, flag, *sample(BY_FLAG[flag])])
        assert len(args.warnings) == 1
        assert flag in args.warnings[0]
        assert instead in args.warnings[0]
        if constant is not None and instead:
            assert args.values[dest] == constant


def test_a_removed_flag_is_refused_with_its_successor(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--expert-balancedness-report-mode" in refusal([*MODEL, "--enable-expert-distribution-metrics"], capsys)


def test_refusals_read_as_argparse_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal([], capsys) == "sglang serve: error: the following arguments are required: --model-path/--model"
    assert refusal([*MODEL, "--no-such-flag"], capsys) == "sglang serve: error: unrecognized arguments: --no-such-flag"
    assert refusal([*MODEL, "--tp-size", "four"], capsys).endswith(": invalid int value: 'four'")
    assert refusal([*MODEL, "--port"], capsys).endswith("argument --port: expected one argument")


def test_the_seeds_whole_command_line_is_accepted() -> None:
    words = f"--model-path /m --speculative-draft-model-path /d --host 0.0.0.0 --port 30000 {SEED_OPTIONS}".split()
    args = parse(words)
    assert (args.tp_size, args.context_length, args.mem_fraction_static, args.port) == (4, 131072, 0.8, 30000)
    assert not args.warnings


def test_the_fields_of_server_args_are_those_of_the_real_one() -> None:
    fields = parse(MODEL).fields()
    assert {"api_key", "fp8_gemm_runner_backend", "uses_mamba_radix_cache", "tool_call_parser"} <= set(fields)
    assert not {"config", "fp8_gemm_backend", "stream_output"} & set(fields)
    assert json.dumps(fields)


@pytest.mark.parametrize(("text", "value"), [("131072", 131072), ("128k", 128000), ("25.6k", 25600), ("128Ki", 131072)])
def test_sizes_may_be_written_short(text: str, value: int) -> None:
    assert human_readable_int(text) == value
