"""What the journal keeps for a later reader: raw readings, and evidence of a state that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from lodger.errors import LodgerError
from lodger.host.facts.base import Fact, Facts
from lodger.run.progress import Progress
from lodger.run.session import Session
from lodger.states.base import State

_SHOWN = 2000  # characters of one reading that the journal keeps


def keep_evidence(session: Session, run: Progress, state: State, also: Sequence[Fact[Any]] = ()) -> None:
    """Keep what an operator should see of a state that failed; an unreadable host must not hide the failure."""
    with contextlib.suppress(LodgerError):
        if found := state.evidence(session.fresh([*state.facts, *also])):
            run.result.evidence = found
            session.log.write("evidence", state=state.name, lines=found.splitlines()[-40:])


def digest(read: Facts) -> dict[str, Any]:
    """Return the raw readings for the journal, each cut to a bounded length."""
    return {
        name: text if len(text) <= _SHOWN else text[:_SHOWN] + f"... {len(text)} characters"
        for name, (_, text) in read.sections.items()
    }
