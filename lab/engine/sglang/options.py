"""The 500 options of SGLang 0.5.19, read from options.json and rejected exactly as argparse rejects them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib import resources
from typing import Any

SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

# Deprecated flag -> (where its value goes, the constant it stores or None for its own value, what to use instead).
Deprecated = tuple[str, Any, str]
DEPRECATED: dict[str, Deprecated] = {
    "--stream-output": ("incremental_streaming_output", True, "--incremental-streaming-output"),
    "--speculative-dflash-draft-window-size": ("speculative_draft_window_size", None, "--speculative-draft-window-size"),
    "--mamba-scheduler-strategy": ("mamba_radix_cache_strategy", None, "--mamba-radix-cache-strategy"),
    "--cuda-graph-max-bs": ("cuda_graph_max_bs_decode", None, "--cuda-graph-max-bs-decode"),
    "--cuda-graph-bs": ("cuda_graph_bs_decode", None, "--cuda-graph-bs-decode"),
    "--disable-cuda-graph": ("disable_cuda_graph", True, "--cuda-graph-backend-{decode,prefill}=disabled"),
    "--enable-breakable-cuda-graph": ("cuda_graph_backend_prefill", "breakable", "--cuda-graph-backend-prefill=breakable"),
    "--disable-piecewise-cuda-graph": ("cuda_graph_backend_prefill", "disabled", "--cuda-graph-backend-prefill=disabled"),
    "--enforce-piecewise-cuda-graph": (
        "cuda_graph_backend_prefill",
        "tc_piecewise",
        "--cuda-graph-backend-prefill=tc_piecewise",
    ),
    "--piecewise-cuda-graph-tokens": ("cuda_graph_bs_prefill", None, "--cuda-graph-bs-prefill"),
    "--piecewise-cuda-graph-compiler": ("cuda_graph_tc_compiler", None, "--cuda-graph-tc-compiler"),
    "--piecewise-cuda-graph-max-tokens": ("cuda_graph_max_bs_prefill", None, "--cuda-graph-max-bs-prefill"),
    "--enable-dsa-prefill-context-parallel": ("enable_dsa_prefill_context_parallel", True, "--enable-prefill-cp"),
    "--enable-nsa-prefill-context-parallel": ("enable_dsa_prefill_context_parallel", True, "--enable-prefill-cp"),
    "--enable-gdn-replayssm-spec": ("enable_linear_replayssm_spec", True, "--enable-linear-replayssm-spec"),
    "--enable-prefill-context-parallel": ("enable_prefill_context_parallel", True, "--enable-prefill-cp"),
    "--dsa-prefill-cp-mode": ("dsa_prefill_cp_mode", None, "--cp-strategy"),
    "--prefill-cp-mode": ("prefill_cp_mode", None, "--cp-strategy"),
    "--prefill-round-robin-balance": ("prefill_round_robin_balance", False, ""),
    "--collect-tokens-histogram": ("collect_tokens_histogram", False, ""),
}
REMOVED = {
    "--enable-expert-distribution-metrics": (
        "--enable-expert-distribution-metrics is no longer supported. Use "
        "--expert-balancedness-report-mode with one of: off, server_log, prometheus, both."
    ),
}
# Options that are only another spelling and have no field of their own in ServerArgs.
NO_FIELD = {"config", "stream_output", "prefill_round_robin_balance", "collect_tokens_histogram"}
# Fields of ServerArgs that no option sets (seen in /server_info of the recordings).
FIELDS_WITHOUT_OPTION: dict[str, Any] = {
    "custom_sigquit_handler": None,
    "stat_loggers": None,
    "torchao_config": "",
    "ep_join_mode": None,
    "ep_join_rank_offset": 0,
    "uses_mamba_radix_cache": False,
}
# Options whose field in ServerArgs has another name.
FIELD_NAMES = {"fp8_gemm_backend": "fp8_gemm_runner_backend", "fp4_gemm_backend": "fp4_gemm_runner_backend"}


def human_readable_int(value: str) -> int:
    """Read 131072, 128k (decimal) or 128Ki (binary)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip())
    if match:
        number, suffix = match.groups()
        if suffix in SI:
            return int(Decimal(number) * SI[suffix])
        if "." not in number:
            return int(number) * IEC[suffix]
    elif re.fullmatch(r"[+-]?\d+", value.strip()):
        return int(value)
    raise argparse.ArgumentTypeError(f"Invalid integer value: '{value}'. Use a plain integer, 1k, 1M, 1Ki or 1Mi.")


def json_list_type(value: str) -> list[Any]:
    """Read a JSON list."""
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {value}") from error
    if not isinstance(parsed, list):
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {value}")
    return parsed


def loads(value: str) -> Any:
    """Read any JSON (a wrong one is a ValueError, which argparse reports with this function's name)."""
    return json.loads(value)


def parse_cuda_graph_config_arg(value: str) -> Any:
    """Read the JSON of --cuda-graph-config."""
    return json.loads(value)


def nullable_str(value: str) -> str | None:
    """Read a string in which nothing and "None" mean None."""
    return None if value in {"", "None", "none"} else value


TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "human_readable_int": human_readable_int,
    "json_list_type": json_list_type,
    "loads": loads,
    "parse_cuda_graph_config_arg": parse_cuda_graph_config_arg,
    "nullable_str": nullable_str,
}


class _Deprecated(argparse.Action):
    """Store what the flag stood for, and remember the warning (logging starts after parsing)."""

    def __init__(self, option_strings: list[str], dest: str, meaning: Deprecated, **rest: Any) -> None:
        self.meaning = meaning
        super().__init__(option_strings, dest, **rest)

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        dest, constant, instead = self.meaning
        setattr(namespace, dest, values if constant is None else constant)
        text = (
            f"'{option_string}' is deprecated and will be removed in a future release. Use '{instead}' instead."
            if instead
            else f"The command line argument '{option_string}' is deprecated and will be removed in future versions."
        )
        warnings = [*getattr(namespace, "deprecation_warnings", []), text]
        namespace.deprecation_warnings = warnings


class _Removed(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: argparse.Namespace, _values: Any, option_string: str | None = None
    ) -> None:
        parser.error(REMOVED[str(option_string)])


def catalogue() -> list[dict[str, Any]]:
    """Return the options as data: flags, default, choices, type, nargs (0 is a switch)."""
    text = resources.files(__package__).joinpath("options.json").read_text("utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


def destination(option: Mapping[str, Any]) -> str:
    """Return the name under which argparse keeps an option."""
    return str(option["flags"][0]).lstrip("-").replace("-", "_")


def _add(parser: argparse.ArgumentParser, option: dict[str, Any]) -> None:
    flags: list[str] = option["flags"]
    keywords: dict[str, Any] = {"default": option["default"]}
    if option["choices"]:
        keywords["choices"] = option["choices"]
    if option["type"]:
        keywords["type"] = TYPES[option["type"]]
    if option["nargs"] is not None:
        keywords["nargs"] = option["nargs"]
    if flags[0] in DEPRECATED:
        dest = DEPRECATED[flags[0]][0]
        parser.add_argument(*flags, action=_Deprecated, meaning=DEPRECATED[flags[0]], **{**keywords, "dest": dest})
    elif flags[0] in REMOVED:
        parser.add_argument(*flags, action=_Removed, nargs=0, default=option["default"])
    elif option["nargs"] == 0 and any(flag.startswith("--no-") for flag in flags):
        positive = [flag for flag in flags if not flag.startswith("--no-")]
        parser.add_argument(*positive, action=argparse.BooleanOptionalAction, default=option["default"])
    elif option["nargs"] == 0:
        parser.add_argument(*flags, action="store_true", default=option["default"])
    else:
        parser.add_argument(*flags, required=flags[0] == "--model-path", **keywords)


@lru_cache(maxsize=1)
def parser() -> argparse.ArgumentParser:
    """Build the argument parser of `sglang serve`."""
    built = argparse.ArgumentParser(prog="sglang serve")
    # A deprecated spelling has no default of its own: the proper option's would be lost.
    for option in sorted(catalogue(), key=lambda entry: entry["flags"][0] in DEPRECATED):
        flag = option["flags"][0]
        shadows = flag in DEPRECATED and DEPRECATED[flag][0] != destination(option)
        _add(built, {**option, "default": argparse.SUPPRESS} if shadows else option)
    return built


@dataclass
class ServerArgs:
    """The parsed options: attribute access to `values`, plus the warnings that parsing raised."""

    values: dict[str, Any]
    warnings: list[str]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def fields(self) -> dict[str, Any]:
        """Return what /server_info and the log call ServerArgs."""
        known = {FIELD_NAMES.get(key, key): value for key, value in self.values.items() if key not in NO_FIELD}
        return {**known, **{key: value for key, value in FIELDS_WITHOUT_OPTION.items() if key not in known}}

    def __str__(self) -> str:
        return "ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in self.fields().items()) + ")"


def _config_file_arguments(path: str) -> list[str]:
    """Turn the flat `key: value` lines of a --config file into options."""
    arguments: list[str] = []
    with open(path, encoding="utf-8") as lines:  # noqa: PTH123 - the error text of open() is what the real one prints
        for line in lines:
            key, colon, value = line.partition(":")
            if not colon or key.lstrip().startswith("#"):
                continue
            text = value.strip().strip("'\"")
            if text.lower() in {"true", ""}:
                arguments.append(f"--{key.strip()}")
            elif text.lower() != "false":
                arguments += [f"--{key.strip()}", text]
    return arguments


def parse(arguments: list[str]) -> ServerArgs:
    """Parse a command line; exits 2 with argparse's message when it is wrong."""
    if "--config" in arguments:
        at = arguments.index("--config")
        arguments = [*_config_file_arguments(arguments[at + 1]), *arguments[:at], *arguments[at + 2 :]]
    namespace = parser().parse_args(arguments)
    values = vars(namespace)
    warnings: list[str] = values.pop("deprecation_warnings", [])
    return ServerArgs(values, warnings)
