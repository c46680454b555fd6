"""The smoke checks over an open connection: through a forwarded port, with the key that the worker asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lodger import capacity
from lodger.engines.sglang.smoke import Expectation, SmokeReport
from lodger.errors import StateFailed
from lodger.host.command import Command, Secret, Transport, quote
from lodger.inventory import Fleet, Host, Worker


@dataclass(frozen=True)
class SmokeRun:
    """Smoke checks that all passed."""

    report: SmokeReport

    def line(self, learnt: str = "") -> str:
        """Return one line with the pace, what was ``learnt``, and a chat reply."""
        report = self.report
        pace = f", {report.tokens_per_s:.0f} token/s" if report.tokens_per_s else ""
        first = f", first token after {report.ttft_s:.2f} s" if report.ttft_s is not None else ""
        return f"{len(report.checks)} smoke checks passed{first}{pace}{learnt}; it says: {report.reply.strip()[:200]}"


def run_smoke(
    transport: Transport,
    at: tuple[str, int],
    expected: Expectation,
    key: Secret | str | None,
    progress: Callable[[str], None],
) -> SmokeRun:
    """Ask the worker ``at`` (address, port) all questions; raise StateFailed for the first check that does not pass.

    ``key`` is what the worker asks for, or the file on its host with it: after a rollback only the host has it.
    """
    from lodger.engines.sglang.client import Client  # noqa: PLC0415  HTTP takes its time to import, most tasks do without
    from lodger.engines.sglang.smoke import smoke  # noqa: PLC0415

    held = key_on_host(transport, key) if isinstance(key, str) else key
    with transport.forward(*at) as local, Client(f"http://127.0.0.1:{local}", held) as client:
        report = smoke(client, expected, progress=lambda check: progress(f"{check.name}: {check.detail}"))
    for check in report.failures:
        raise StateFailed(f"smoke check `{check.name}` failed: {check.detail}", hint=f"the setting is {check.setting}")
    return SmokeRun(report)


def key_on_host(transport: Transport, path: str) -> Secret | None:
    """Return the key in the file ``path`` on the host, None for no path."""
    if not path:
        return None
    read = Command(f"sed -n 's/^Authorization: Bearer //p' {quote([path])}", why="ask with the key that the worker has")
    return Secret(transport.run(read).check(transport.host).stdout.strip())


def learn(fleet: Fleet, host: Host, worker: Worker, passed: SmokeRun) -> str:
    """Compare a worker's engine with its capacity plan and return what to tell; a correction is kept beside the inventory."""
    engine = passed.report.engine
    if engine is None or engine.max_total_num_tokens is None:
        return ""
    compared = capacity.learn(fleet, host, worker, engine.max_total_num_tokens, engine.effective_max_running_requests)
    return f"; capacity: {compared}" if compared else ""
