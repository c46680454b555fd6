"""The ledger of an unfinished run, as it stands on a host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lodger.errors import Refused
from lodger.host import facts, paths
from lodger.host.facts.base import Facts
from lodger.run import footprint


@dataclass(frozen=True)
class Ledger:
    """What an unfinished run left on the host: how the host stood, which states it had begun, what they stopped."""

    run: str
    runbook: str
    params: Mapping[str, Any]
    operator: str
    before: str
    acted: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    version: int = 1

    def text(self) -> str:
        """Return the file's content."""
        return json.dumps(self.__dict__, sort_keys=True) + "\n"

    @staticmethod
    def load(text: str, runbook: str) -> Ledger | None:
        """Return the ledger in ``text``, None for an empty one.

        Raises Refused for one that nobody can read, one of another version, and one that a run of ``runbook`` would end
        without putting back what it names: a deploy and a rollback go on from each other, any other run has to be finished
        itself.
        """
        if not text:
            return None
        try:
            data = json.loads(text)
            if (version := data.get("version", Ledger.version)) != Ledger.version:
                cause = f"{paths.LEDGER} has version {version}, this Lodger knows {Ledger.version}"
                hint = f"end it with the Lodger of {data.get('operator')}, who began it as a {data.get('runbook')}"
                raise Refused("the ledger of an unfinished run is of another version", cause=cause, hint=hint)
            footprint.of(Facts.load(data["before"]), "")  # one that does not say how the host stood is of no use
            found = Ledger(**{**data, "acted": tuple(data["acted"]), "stops": tuple(data["stops"])})
        except (ValueError, TypeError, KeyError, AttributeError, facts.Unreadable) as error:
            raise Refused(
                "the ledger of an unfinished run cannot be read",
                cause=f"{paths.LEDGER}: {error}",
                hint="look at it and at the last journal on the host, put back what they name, then remove it",
            ) from error
        if found.runbook != runbook and not {found.runbook, runbook} <= {"deploy", "rollback"}:
            cause = f"it is a {found.runbook} that {found.operator} began, and only that knows what to put back"
            raise Refused(f"run {found.run} did not finish", cause=cause, hint=f"end it first: run {found.runbook} once more")
        return found
