"""A rollback: one release back, to the last but one of the host's history, or to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lodger.errors import Refused
from lodger.host import facts, paths
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.deployed import Deployed
from lodger.inventory import Fleet, Host
from lodger.plans.expand import expand
from lodger.plans.request import FIRST, paused_remarks
from lodger.plans.runbook import Runbook
from lodger.release import pauses
from lodger.release.api_keys import ApiKey
from lodger.release.manifest import installed, services, smoke_of, unit_files
from lodger.release.service import Service
from lodger.run.ledger import Ledger
from lodger.run.plan import Plan
from lodger.states.neighbour_record import recorded
from lodger.states.target import Target, TargetOptions, TargetRelease
from lodger.states.worker_pause import unit_honours_pause, unit_ignores_pause


@dataclass(frozen=True)
class Rollback:
    """Go one release back on ``host``; ``together`` are the hosts of the same command.

    After a deploy that was cut off, the target is the release from before it. A rollback that was cut off keeps its target.
    """

    fleet: Fleet
    host: Host
    book: Runbook
    together: frozenset[str] = frozenset()
    shows_document: bool = False

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts that name the release to go back to; the other facts depend on it."""
        return FIRST

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return the plan; raise Refused when there is nothing to go back to."""
        deployed = read[facts.DEPLOYED]
        records = tuple(recorded(deployed))
        owed_before = recorded(Facts.load(ledger.before)[facts.DEPLOYED]) if ledger else records
        history = _earlier(deployed, ledger)
        wanted = history[-1] if history else ""
        present = installed(deployed)
        if ledger is None and not deployed.current and not records and not present:
            raise Refused("there is nothing to roll back", cause="no release is recorded on this host")
        back = services(deployed, wanted)
        paused = frozenset(pauses.paused(deployed))
        _refuse_units_that_ignore_a_pause(self.host, deployed, wanted, [back[name] for name in sorted(paused & back.keys())])
        smoke = smoke_of(deployed, wanted)
        release = TargetRelease(wanted, back, smoke=smoke, keys=earlier_keys(back), history=history)
        # A neighbour that only the cut-off deploy replaced is put back now, not with the last rollback.
        restore = tuple(record for record in records if not wanted or record not in owed_before)
        options = TargetOptions(together=self.together, restore=restore)
        target = Target(self.fleet, self.host, release, present, paused, options)
        params, remarks = {"history": list(history)}, paused_remarks(self.host, read)
        return Plan("rollback", self.host.name, expand(self.book, target), FIRST, params, remarks)

    def difference(self, read: Facts) -> None:
        """Return None: the files are those of a release that is on the host."""
        del read


def earlier_keys(found: Mapping[str, Service]) -> tuple[ApiKey, ...]:
    """Return the keys that the services of an earlier release need; only the host still has them."""
    return tuple(ApiKey(*one) for one in sorted({(service.pool, service.key) for service in found.values() if service.key}))


def _refuse_units_that_ignore_a_pause(host: Host, deployed: Deployed, release: str, paused: Sequence[Service]) -> None:
    """Raise Refused for a release whose units would start a worker although its pause is recorded."""
    for service in paused:
        unit, _ = unit_files(deployed, release, service.unit)
        if unit is not None and not unit_honours_pause(service, unit):
            blocker = unit_ignores_pause(service, host.name)
            raise Refused(blocker.what, cause=blocker.cause, hint=blocker.hint)


def _earlier(deployed: Deployed, ledger: Ledger | None) -> tuple[str, ...]:
    """Return the history to record after this rollback."""
    if ledger is not None and ledger.runbook == "rollback":
        return tuple(ledger.params["history"])
    if ledger is not None:
        return Facts.load(ledger.before)[facts.DEPLOYED].history  # the cut-off run may have recorded its own release already
    if (deployed.history or ("",))[-1] != deployed.current:
        last = deployed.history[-1] if deployed.history else "nothing"
        raise Refused(
            "it is not known which release to go back to",
            cause=f"{paths.HISTORY} ends with {last}, but the current release is {deployed.current or 'none'}",
            hint="./ops deploy records what it deploys; or write the releases into that file, one a line, the current one last",
        )
    return deployed.history[:-1]
