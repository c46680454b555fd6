"""Rules about further options on the command line."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import re
from collections.abc import Iterator

from lodger.engines.sglang.image import is_known, numbers
from lodger.engines.sglang.lint.rules import rule
from lodger.engines.sglang.options import options
from lodger.host import nvidia
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import ServedWorker, View

_SECRETS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")


def _flags(served: ServedWorker) -> Iterator[tuple[int, str]]:
    for position, argument in enumerate(served.settings.extra_args):
        if argument.startswith("--"):
            yield position, argument.partition("=")[0]


@rule(
    "L029",
    Severity.ERROR,
    bad=[
        "pools: {p: {extra_args: [--no-such-option]}}",
        "pools: {p: {extra_args: [--mamba-backend, triton, --enable-metric]}}",
    ],
    good=[
        "pools: {p: {extra_args: [--mamba-backend=triton, --soft-watchdog-timeout, '60']}}",
        "pools: {p: {extra_args: [--new-option]}}\nimages: {engine: {tag: v0.5.23-cu129}}",
    ],
)
def option_that_the_engine_does_not_have(view: View) -> Iterator[Hit]:
    """A further option is not one of the pinned engine version."""
    for served in view.workers:
        for position, flag in _flags(served):
            if is_known(served.image) and flag not in options()["flags"]:
                yield Hit(
                    served.at("extra_args", position),
                    f"SGLang {options()['version']} has no option {flag}, and would end with its usage text",
                    "remove it, or see the options of the pinned version",
                )


@rule(
    "L030",
    Severity.ERROR,
    bad=["pools: {p: {extra_args: [--mamba-scheduler-strategy, extra_buffer]}}\nimages: {engine: {tag: v0.5.20-cu129}}"],
    good=["pools: {p: {extra_args: [--mamba-radix-cache-strategy=auto]}}\nimages: {engine: {tag: v0.5.20-cu129}}"],
)
def option_that_is_gone(view: View) -> Iterator[Hit]:
    """A further option was removed before the pinned engine version."""
    for served in view.workers:
        version = numbers(served.image)
        for position, flag in _flags(served):
            since, successor = options()["gone"].get(flag, ("999", ""))
            if version and version >= nvidia.version_key(since):
                yield Hit(served.at("extra_args", position), f"{flag} is gone since SGLang {since}", f"{successor} instead")


@rule(
    "L031",
    Severity.WARNING,
    bad=["pools: {p: {extra_args: [--disable-cuda-graph]}}", "pools: {p: {extra_args: ['--cuda-graph-max-bs=8']}}"],
    good=["pools: {p: {extra_args: [--cuda-graph-max-bs-decode, '8']}}"],
)
def option_that_is_deprecated(view: View) -> Iterator[Hit]:
    """A further option is deprecated in the pinned engine version."""
    for served in view.workers:
        for position, flag in _flags(served):
            if is_known(served.image) and flag in options()["deprecated"]:
                yield Hit(
                    served.at("extra_args", position),
                    f"{flag} is deprecated in SGLang {options()['version']} and goes with a later version",
                    f"{options()['deprecated'][flag]} instead",
                )


@rule(
    "L032",
    Severity.ERROR,
    bad=["pools: {p: {extra_args: [--mem-fraction-static, '0.9']}}", "pools: {p: {extra_args: [--port=30000]}}"],
    good=["pools: {p: {extra_args: [--mamba-backend, triton]}}"],
)
def option_given_twice(view: View) -> Iterator[Hit]:
    """A further option repeats what the inventory has a setting for, and would win over it unseen."""
    text = next((text for path, text in view.templates.items() if path.name.startswith("worker.")), "")
    ours = set(re.findall(r"^\s*- (--[a-z-]+)$", text, re.MULTILINE))
    for served in view.workers:
        for position, flag in _flags(served):
            if flag in ours:
                yield Hit(
                    served.at("extra_args", position),
                    f"{flag} is set by Lodger already; the second one wins, and every check looks at the first",
                    f"use the setting {flag.removeprefix('--').replace('-', '_')} where there is one, else leave it out",
                )


@rule(
    "L033",
    Severity.ERROR,
    bad=["pools: {p: {extra_args: [--api-key, sesame]}}", "pools: {p: {extra_args: [--admin-api-key=sesame]}}"],
    good=["pools: {p: {extra_args: [--mamba-backend, triton]}}"],
)
def secret_on_the_command_line(view: View) -> Iterator[Hit]:
    """A key is an argument of the engine, which everybody on the host reads with `ps`."""
    for served in view.workers:
        for position, flag in _flags(served):
            if flag in _SECRETS:
                yield Hit(
                    served.at("extra_args", position),
                    f"{flag} stands in the compose file, in `ps` and in git, and /server_info tells it in clear",
                    "take it out, and name a file with the key in the pool's `api_key_file`",
                )
