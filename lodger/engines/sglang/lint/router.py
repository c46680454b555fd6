"""Rules about sglang-router."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import re
from collections.abc import Iterator

from lodger.engines.sglang.capacity.sizing import SglangPrediction
from lodger.engines.sglang.lint.rules import rule
from lodger.lint.location import Location
from lodger.lint.rule import Hit, Severity
from lodger.lint.view import View

_ROUTER = "router: {pool: p, port: 30002, prometheus_port: 29000, listen: 10.0.0.1}"


@rule(
    "L040",
    Severity.WARNING,
    bad=["pools: {p: {routing: {balance_abs_threshold: 64}}}\n" + _ROUTER],
    good=[
        "pools: {p: {routing: {balance_abs_threshold: 3}}}\n" + _ROUTER,
        "pools: {p: {routing: {balance_abs_threshold: 64}}}",
    ],
)
def balance_threshold_never_reached(view: View) -> Iterator[Hit]:
    """The router balances at a difference of requests that its workers never have."""
    for host in view.hosts:
        if host.router is None:
            continue
        pool = view.fleet.pools[host.router.pool]
        running = [view.fleet.settings(worker).max_running_requests for _, worker in view.fleet.pool_workers(pool.name)]
        predicted = [
            served.outcome.running
            for served in view.workers
            if served.pool.name == pool.name and isinstance(served.outcome, SglangPrediction)
        ]
        if (most := min(max(running, default=0), max(predicted, default=1 << 30))) <= pool.routing.balance_abs_threshold:
            yield Hit(
                Location(("pools", pool.name, "routing", "balance_abs_threshold")),
                f"a worker runs {most} requests at once, so a difference of {pool.routing.balance_abs_threshold} never "
                "occurs: one shared system prompt would send everybody to one worker",
                f"balance_abs_threshold: {max(most // 2, 1)}",
            )


@rule(
    "L041",
    Severity.ERROR,
    bad=["router_template: '      - --cb-failure-threshold'", "router_template: '      {# no --disable-circuit-breaker #}'"],
    good=["router_template: '      - --disable-circuit-breaker'"],
)
def breaker_that_clients_trip(view: View) -> Iterator[Hit]:
    """The router's circuit breaker counts a client's own mistakes."""
    for path, text in view.templates.items():
        if path.name.startswith("router.") and not re.search(r"^\s*- --disable-circuit-breaker$", text, re.MULTILINE):
            yield Hit(
                Location(document=(path, 1)),
                "the router's breaker counts answers with status 400 as failures: 20 bad requests in a row took a healthy pool "
                "of two down for a minute, while /readiness said ready",
                "--disable-circuit-breaker, and health checks every few seconds",
            )
