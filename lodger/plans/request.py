"""What a task asks for on one host, and what all such requests share.

A request knows what to read first, and makes a plan from what was read. ``carry_out`` is who calls it.
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
"""What every run reads: the machine, our own files, and all that a footprint is made of."""


class Request(Protocol):
    """One task on one host."""

    @property
    def host(self) -> Host:
        """Where."""
        ...

    @property
    def book(self) -> Runbook:
        """By which runbook."""
        ...

    @property
    def shows_document(self) -> bool:
        """Whether a dry run prints the runbook as a document, rather than the difference and the states."""
        ...

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return what to read first: all that a run with nothing to do needs, so that it reads once."""
        ...

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return what is to be established, from what was read and the ledger of a run that did not finish."""
        ...

    def difference(self, read: Facts) -> str | None:
        """Return a unified diff of files, "" where none differs, None where files are not compared."""
        ...


class Expansion:
    """The steps of a runbook for a guess: the host as the inventory would have it. A host that is so needs no other."""

    def __init__(self, book: Runbook, guess: Target | None) -> None:
        self._book, self._guess = book, guess
        self._steps = expand(book, guess) if guess is not None else []

    @property
    def facts(self) -> tuple[Fact[Any], ...]:
        """What the states of the guess ask for."""
        return facts_of(self._steps)

    def steps(self, target: Target) -> Sequence[Step]:
        """Return the steps for ``target``; those of the guess where it was right."""
        return self._steps if target == self._guess else expand(self._book, target)


def guessed_services(fleet: Fleet, host: Host) -> dict[str, Service]:
    """Return the services that the inventory would have there; none while its images are not pinned, for none was deployed."""
    try:
        return render(fleet, host).by_name
    except InventoryError:
        return {}


def paused_remarks(host: Host, read: Facts) -> tuple[str, ...]:
    """Return a line for each worker whose GPUs are given back: a run leaves it alone."""
    return tuple(
        f"{pause}: this run leaves it so; to end the pause: ./ops resume --host {host.name} --worker {pause.worker}"
        for pause in pauses.paused(read[facts.DEPLOYED]).values()
    )
