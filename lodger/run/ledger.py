"""The ledger of an unfinished run, read from a host."""

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
    """What an unfinished run left on the host: the facts from before it, the states that it began, and what they stopped."""

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

    def command(self, host: str) -> str:
        """Return the command line that finishes the run on ``host``."""
        own_task = self.runbook in {"deploy", "rollback", "pause", "resume"}
        worker = f" --worker {self.params['worker']}" if "worker" in self.params else ""
        return f"./ops {'' if own_task else 'runbook '}{self.runbook} --host {host}{worker}"

    @staticmethod
    def load(text: str, runbook: str, host: str = "NAME") -> Ledger | None:
        """Return the ledger in ``text`` on ``host``, None for an empty one.

        Raises Refused for a ledger that cannot be read or has another version, and when a run of ``runbook`` would end it
        without putting back what it names: a deploy and a rollback continue each other, any other run must be finished first.
        """
        if not text:
            return None
        try:
            data = json.loads(text)
            if (version := data.get("version", Ledger.version)) != Ledger.version:
                cause = f"{paths.LEDGER} has version {version}, this Lodger knows {Ledger.version}"
                hint = f"finish that {data.get('runbook')} with the Lodger of {data.get('operator')}, who started it"
                raise Refused("the ledger of an unfinished run has another version", cause=cause, hint=hint)
            footprint.of(Facts.load(data["before"]), "")  # a ledger without a footprint is of no use
            found = Ledger(**{**data, "acted": tuple(data["acted"]), "stops": tuple(data["stops"])})
        except (ValueError, TypeError, KeyError, AttributeError, facts.Unreadable) as error:
            raise Refused(
                "the ledger of an unfinished run cannot be read",
                cause=f"{paths.LEDGER}: {error}",
                hint="read it and the last journal on the host, start again what they say was stopped, then delete the ledger",
            ) from error
        if found.runbook != runbook and not {found.runbook, runbook} <= {"deploy", "rollback"}:
            cause = f"{found.operator} started it, and only another {found.runbook} can finish it or put back what it stopped"
            hint = f"finish it first: {found.command(host)}"
            raise Refused(f"run {found.run} did not finish", cause=cause, hint=hint)
        return found
