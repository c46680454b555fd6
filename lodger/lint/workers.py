"""Rules about workers, whatever engine runs them."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

from collections.abc import Iterator

from lodger.lint.location import Location
from lodger.lint.rule import Hit, Severity, rule
from lodger.lint.view import View


@rule(
    "L022",
    Severity.ERROR,
    bad=["pools: {p: {context_length: 524288, kv_cache_dtype: fp8_e4m3}}"],
    good=["pools: {p: {context_length: 262144, kv_cache_dtype: fp8_e4m3}}"],
)
def context_longer_than_the_model(view: View) -> Iterator[Hit]:
    """The context is longer than the model was made for."""
    for served in view.workers:
        longest = served.target.max_context if served.target else 0
        if longest and served.settings.context_length > longest:
            yield Hit(
                served.at("context_length"),
                f"{served.settings.context_length} tokens are declared, the model's max_position_embeddings are {longest}",
                f"at most {longest}",
            )


@rule(
    "L034",
    Severity.WARNING,
    bad=["pools: {p: {shm_size_gib: 1}}", "pools: {p: {shm_size_gib: 3}}"],
    good=[
        "pools: {p: {shm_size_gib: 4}}",
        "pools: {p: {shm_size_gib: 1}}\nworkers: {a: {gpus: [0]}}\ngpus: {memory_mib: 81920}",
    ],
)
def little_shared_memory(view: View) -> Iterator[Hit]:
    """The container's shared memory is small for the ranks that talk through it."""
    for served in view.workers:
        if served.worker.tp > 1 and served.settings.shm_size_gib < served.worker.tp:
            yield Hit(
                served.at("shm_size_gib"),
                f"{served.worker.tp} ranks talk through {served.settings.shm_size_gib} GiB of shared memory; NCCL fails where "
                "it is full",
                f"at least {served.worker.tp}, and 32 where the host has the memory",
            )


@rule(
    "L037",
    Severity.WARNING,
    bad=[
        "pools: {p: {restart_burst: 18}}",
        "router: {pool: p, port: 30002, prometheus_port: 29000, listen: 10.0.0.1, restart_burst: 9}",
    ],
    good=["pools: {p: {restart_burst: 5}}"],
)
def many_restarts(view: View) -> Iterator[Hit]:
    """A setting that cannot work is started many times over."""
    limits: list[tuple[Location, int]] = [
        (served.at("restart_burst"), served.settings.restart_burst) for served in view.workers
    ]
    limits += [
        (Location(("router", "restart_burst"), host.name), host.router.restart_burst) for host in view.hosts if host.router
    ]
    for place, burst in limits:
        if burst > 5:
            yield Hit(
                place,
                f"what fails once in the same way fails {burst} times, a slow start each, before the unit is *failed*",
                "restart_burst: 3",
            )
