"""From a runbook and a target to steps: each group of states for each item, and the pools that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lodger.host.ownership import Owner
from lodger.inventory import Neighbour
from lodger.plans.runbook import Block, Runbook
from lodger.release.service import Service
from lodger.states.base import Step
from lodger.states.registry import states
from lodger.states.shell import Shell
from lodger.states.target import Target

PAUSED_WITNESS = "test_paused.py"


def expand(runbook: Runbook, target: Target) -> list[Step]:
    """Return the steps of ``runbook`` for ``target``; a group is finished for one item before the next begins."""
    steps: list[Step] = []
    told: set[str] = set()
    for block in runbook.blocks:
        if block.shell:
            steps.append(Step(Shell(**block.shell), block.heading, block.witnesses, line=block.line))
            continue
        chosen = target.items(block.each)
        if "neighbour_resumed" in block.names:
            chosen.reverse()  # the one stopped last is started first: others may need it
        for item in chosen:
            block_names, witnesses = _asked(block, item, target)
            if block_names == ["worker_paused"] != list(block.names):
                if item.name in told:
                    continue  # one worker_paused for each paused worker is enough
                told.add(item.name)
            made = [states()[name].make(target, item) for name in block_names]
            name = item.name if isinstance(item, Service | Owner | Neighbour) else ""
            pool = target.pool_of(name) if isinstance(item, Service) else ""
            pools = (pool,) if pool else ()
            steps += [Step(state, block.heading, item=name, pools=pools, line=block.line) for state in made[:-1]]
            steps.append(Step(made[-1], block.heading, witnesses, name, pools, line=block.line))
    return _held_while_away(steps)


def _held_while_away(steps: Sequence[Step]) -> list[Step]:
    """Return ``steps`` with pools held while a service is down, even over several blocks.

    Services that are down together hold the pools of all of them until the last is back. Otherwise another host could stop
    the last worker that serves.
    """
    found, together, end = list(steps), list[int](), -1
    last = {step.item: number for number, step in enumerate(steps) if step.pools}
    for number, step in enumerate(steps):
        if not step.pools:
            continue
        together.append(number)
        end = max(end, last[step.item])
        if number == end:
            pools = tuple(sorted({pool for one in together for pool in steps[one].pools}))
            for one in together:
                found[one] = replace(steps[one], pools=pools, frees_pools=one == end)
            together.clear()
    return found


def _asked(block: Block, item: Any, target: Target) -> tuple[list[str], tuple[str, ...]]:
    """Return the states of ``block`` for ``item`` and their witnesses; a paused worker gets its files and stays paused."""
    if not isinstance(item, Service) or item.name not in target.paused:
        return list(block.names), block.witnesses
    kept = [name for name in block.names if not states()[name].needs_running]
    if len(kept) == len(block.names):
        return kept, block.witnesses
    return [*kept, "worker_paused"], (PAUSED_WITNESS,) if block.witnesses else ()


def names(steps: Sequence[Step]) -> list[str]:
    """Return the names of the states in order."""
    return [step.state.name for step in steps]
