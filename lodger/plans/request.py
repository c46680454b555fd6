"""A request: one task on one host, and what all requests share.

A request knows which facts to read first, and makes a plan from them. ``carry_out`` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lodger.errors import InventoryError
from lodger.host import facts
from lodger.host.facts.base import Fact, Facts
from lodger.inventory import Fleet, Host
from lodger.plans.expand import expand
from lodger.plans.runbook import Runbook
from lodger.release import pauses
from lodger.release.render import render
from lodger.release.service import Service
from lodger.run.ledger import Ledger
from lodger.run.plan import Plan, facts_of
from lodger.states.base import Step
from lodger.states.target import Target

FIRST: tuple[Fact[Any], ...] = (facts.MACHINE, facts.DEPLOYED, *facts.FOOTPRINT)
"""What every run reads: the machine, our own files, and the facts of the footprint."""


class Request(Protocol):
    """One task on one host."""

    @property
    def host(self) -> Host:
        """The host."""
        ...

    @property
    def book(self) -> Runbook:
        """The runbook."""
        ...

    @property
    def shows_document(self) -> bool:
        """Whether a dry run prints the runbook as a document, not the difference and the states."""
        ...

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts to read first: all that a run with nothing to do needs, so that it reads once."""
        ...

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return the plan, from the facts and the ledger of an unfinished run."""
        ...

    def difference(self, read: Facts) -> str | None:
        """Return a unified diff of files, "" when none differs, None when files are not compared."""
        ...


class Expansion:
    """The steps of a runbook for a guessed target: a host that is as the inventory says. They are made once."""

    def __init__(self, book: Runbook, guess: Target | None) -> None:
        self._book, self._guess = book, guess
        self._steps = expand(book, guess) if guess is not None else []

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """The facts that the states of the guess need."""
        return facts_of(self._steps)

    def steps(self, target: Target) -> Sequence[Step]:
        """Return the steps for ``target``; those of the guess when it was right."""
        return self._steps if target == self._guess else expand(self._book, target)


def guessed_services(fleet: Fleet, host: Host) -> dict[str, Service]:
    """Return the services that the inventory has there; none while its images are not pinned: nothing is deployed then."""
    try:
        return render(fleet, host).by_name
    except InventoryError:
        return {}


def paused_remarks(host: Host, read: Facts) -> tuple[str, ...]:
    """Return a line for each paused worker: a run leaves it paused."""
    return tuple(
        f"{pause}: this run leaves it so; to end the pause: ./ops resume --host {host.name} --worker {pause.worker}"
        for pause in pauses.paused(read[facts.DEPLOYED]).values()
    )
