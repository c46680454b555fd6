"""Rules about speculative decoding."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

from collections.abc import Iterator

from lodger.engines.sglang.capacity.sizing import SLOTS
from lodger.engines.sglang.lint.rules import rule
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import View


@rule(
    "L024",
    Severity.ERROR,
    bad=["pools: {p: {max_running_requests: 2, draft: {tokens: 16}}}", "pools: {p: {draft: {tokens: 4}}}"],
    good=["pools: {p: {draft: {tokens: 16}}}\ndraft_config: {block_size: 16}", "pools: {p: {draft: null}}"],
)
def draft_tokens_other_than_the_block(view: View) -> Iterator[Hit]:
    """A block-diffusion draft proposes another number of tokens than its block has."""
    for served in view.workers:
        block = served.drafter.block_size if served.drafter else None
        draft = served.settings.draft
        if draft and block and draft.tokens != block:
            yield Hit(
                served.at("draft", "tokens"),
                f"{draft.tokens} draft tokens are declared, {draft.model} was trained for blocks of {block}; the engine only "
                "warns, and accepts fewer tokens",
                f"tokens: {block}",
            )


@rule(
    "L025",
    Severity.ERROR,
    bad=[
        "pools: {p: {draft: {quantization: null}}}",
        "draft_config: {quantization_config: {quant_method: compressed-tensors}}",
    ],
    good=["pools: {p: {draft: {quantization: null}}}\nconfig: {quantization_config: null}", "pools: {p: {draft: null}}"],
)
def draft_read_as_something_else(view: View) -> Iterator[Hit]:
    """The draft is read with its target's quantization, or is quantized itself: it never matches."""
    for served in view.workers:
        draft, drafter = served.settings.draft, served.drafter
        if not draft or not drafter or not served.target:
            continue
        if drafter.quantization:
            why, instead = f"{draft.model} is quantized ({drafter.quantization})", "use the BF16 draft"
        elif served.target.quantization and draft.quantization is None:
            why = f"unset, the draft's quantization is its target's ({served.target.quantization}), and {draft.model} is BF16"
            instead = "quantization: unquant"
        else:
            continue
        yield Hit(served.at("draft", "quantization"), f"{why}: none of its tokens would match, which only speed shows", instead)


@rule(
    "L036",
    Severity.WARNING,
    bad=["pools: {p: {mamba_radix_cache_strategy: extra_buffer_lazy}}"],
    good=[
        "pools: {p: {mamba_radix_cache_strategy: extra_buffer_lazy, draft: null}}",
        "pools: {p: {mamba_radix_cache_strategy: null}}",
    ],
)
def lazy_buffer_with_a_block_draft(view: View) -> Iterator[Hit]:
    """`extra_buffer_lazy` was refused together with a DFLASH draft by one build."""
    for served in view.workers:
        draft, strategy = served.settings.draft, served.settings.mamba_radix_cache_strategy
        if draft and draft.algorithm == "DFLASH" and strategy == "extra_buffer_lazy":
            yield Hit(
                served.at("mamba_radix_cache_strategy"),
                "a build of the engine refused to start with extra_buffer_lazy and a DFLASH draft",
                f"extra_buffer, which takes {SLOTS['extra_buffer']} state slots a request instead of {SLOTS[strategy]}",
            )
