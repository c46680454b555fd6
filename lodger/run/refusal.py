"""Refusals before the first change, and the remarks of a plan. Pure: steps and facts in, texts out."""

from __future__ import annotations

from collections.abc import Sequence

from lodger.errors import Refused
from lodger.host.facts.base import Facts
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.run.plan import Plan
from lodger.states.base import Blocker, Step


def refuse_early(steps: Sequence[Step], read: Facts, result: RunResult) -> None:
    """Raise Refused for everything that can be known to fail; each state that is blocked gets a line in ``result``."""
    provided: set[str] = set()
    found: list[Blocker] = []
    for step in steps:
        state = step.state
        if not state.missing(read):
            provided |= state.provides
            continue
        mine = [blocker for blocker in state.blockers(read) if not blocker.awaits or blocker.awaits not in provided]
        if mine:
            result.states.append(StateResult(state.name, Status.REFUSED, detail=mine[0].what))
            found += mine
        provided |= state.provides
    if found:
        raise refusal(found)


def refusal(found: Sequence[Blocker]) -> Refused:
    """Return one refusal that names every blocker of ``found``."""
    first = found[0]
    others = "".join(
        f"\n  also: {blocker.what}{f' ({blocker.cause})' if blocker.cause else ''}{f'; {blocker.hint}' if blocker.hint else ''}"
        for blocker in found[1:]
    )
    return Refused(first.what, cause=first.cause, hint=first.hint + others)


def remarks(plan: Plan, read: Facts) -> tuple[str, ...]:
    """Return the remarks for plan and report: the plan's, and those of its states, each once."""
    return tuple(dict.fromkeys([*plan.remarks, *(line for step in plan.steps for line in step.state.remarks(read))]))
