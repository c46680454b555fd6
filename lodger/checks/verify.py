"""Verify: run every witness of a host, whatever its states say."""

from __future__ import annotations

from lodger.checks.look import looking, paused_workers, read, would_look_at
from lodger.errors import StateFailed
from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host
from lodger.release import pauses
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.terminal import Terminal


def verify(fleet: Fleet, host: Host) -> RunResult:
    """Return the result of every witness of ``host``."""

    def act(connection: Ssh, result: RunResult) -> None:
        from lodger.run.witness import run_witnesses, specs_for  # noqa: PLC0415  pytest takes its time

        terminal = Terminal()
        found = read(connection, pauses.RECORDS, facts.DEPLOYED)
        if (host.workers or host.router) and nothing_deployed(found):
            raise StateFailed("Lodger has deployed nothing on this host", hint=f"./ops deploy --host {host.name}")
        away = paused_workers(found, host, result, terminal)
        up = [name for name in host.workers if name not in away]
        params = {"workers": up, "paused": list(away)}
        for one in run_witnesses(specs_for(host, away), connection, fleet, host, params):
            status = Status.SATISFIED if one.passed else Status.FAILED
            result.states.append(StateResult(one.nodeid, status, one.seconds, one.message))
            terminal.state(host.name, result.states[-1])
        failed = [state for state in result.states if state.status is Status.FAILED]
        if failed:
            raise StateFailed(
                f"{len(failed)} of {len(result.states)} witnesses disagree", cause=f"{failed[0].name}: {failed[0].detail}"
            )
        result.found = f"all {len(result.states)} witnesses agree"

    return looking(host, "verify", act)


def witnesses_of(fleet: Fleet, host: Host) -> RunResult:
    """Return the witnesses that a verify would ask, without asking them."""
    from lodger.run.witness import specs_for  # noqa: PLC0415  pytest takes its time

    del fleet
    return would_look_at(host, "verify", [spec.name for spec in specs_for(host)])


def nothing_deployed(found: Facts) -> bool:
    """Return whether no record, release or unit of ours is on a host; records that cannot be read count as there."""
    try:
        deployed = found[facts.DEPLOYED]
    except facts.Unreadable:
        return False
    return not deployed.stored and not any(deployed.standing)
