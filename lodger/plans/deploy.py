"""A deploy: the host serves what the inventory says."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lodger import checkout
from lodger.engines import expectations
from lodger.errors import Refused
from lodger.host import facts, paths
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.deployed import Deployed
from lodger.inventory import Fleet, Host
from lodger.plans.request import FIRST, Expansion, paused_remarks
from lodger.plans.runbook import Runbook
from lodger.release import api_keys, pauses
from lodger.release.api_keys import ApiKey
from lodger.release.manifest import installed, manifest_text
from lodger.release.render import render
from lodger.release.service import Release
from lodger.run.ledger import Ledger
from lodger.run.plan import Plan
from lodger.states.target import Target, TargetOptions, TargetRelease


@dataclass(frozen=True)
class Deploy:
    """Make ``host`` serve what the inventory says; ``together`` are the hosts of the same command.

    ``contains(revision)`` says whether this checkout has the deployed revision; if not, the plan refuses.
    """

    fleet: Fleet
    host: Host
    book: Runbook
    revision: str
    together: frozenset[str] = frozenset()
    contains: Callable[[str], bool] = checkout.contains
    shows_document: bool = False

    @cached_property
    def release(self) -> Release:
        """The rendered release. Raises InventoryError for an image without a digest."""
        return render(self.fleet, self.host)

    @cached_property
    def guess(self) -> Target:
        """The target on a host that is deployed already: right for a deploy with nothing to do."""
        services = self.release.by_name
        smoke = expectations(self.fleet, self.host)
        release = TargetRelease(
            id=self.release.id,
            services=services,
            files=self.release.files,
            manifest=manifest_text(self.release.id, self.host.name, self.revision, list(services.values()), smoke),
            smoke=smoke,
            keys=_pool_keys(self.fleet, self.host),
        )
        options = TargetOptions(together=self.together, learns=True)
        return Target(self.fleet, self.host, release, present=services, options=options)

    @cached_property
    def _expansion(self) -> Expansion:
        return Expansion(self.book, self.guess)

    def reads(self) -> tuple[Fact[Any], ...]:
        """Return every fact that the states need, so that a deploy with nothing to do reads once."""
        return (*FIRST, *self._expansion.facts)

    def plan(self, read: Facts, ledger: Ledger | None) -> Plan:
        """Return the plan; raise Refused when the deployed release is newer than this checkout."""
        del ledger
        deployed = read[facts.DEPLOYED]
        present = installed(deployed)
        self._refuse_older(deployed)
        target = replace(self.guess, present=present, paused=frozenset(pauses.paused(deployed)))
        steps, remarks = self._expansion.steps(target), paused_remarks(self.host, read)
        return Plan("deploy", self.host.name, steps, self.reads(), {"release": self.release.id}, remarks)

    def difference(self, read: Facts) -> str:
        """Return a unified diff from the files in effect on the host to the release."""
        return difference(read[facts.DEPLOYED], self.release)

    def _refuse_older(self, deployed: Deployed) -> None:
        if not deployed.current:
            return
        revision = str(deployed.manifest(deployed.current).get("revision", ""))
        if not self.contains(revision):
            raise Refused(
                "what is deployed is newer than this checkout",
                cause=f"release {deployed.current} was made from revision {revision[:12]}, "
                "which is not in this checkout's history",
                hint=f"git pull; or, to deploy this older state: ./ops deploy --host {self.host.name} --force",
            )


def _pool_keys(fleet: Fleet, host: Host) -> tuple[ApiKey, ...]:
    """Return the keys of the pools that have a worker or router on ``host``."""
    pools = {worker.pool for worker in host.workers.values()} | ({host.router.pool} if host.router else set())
    return tuple(key for pool in sorted(pools) if (key := api_keys.of(fleet, pool)) is not None)


def difference(deployed: Deployed, release: Release) -> str:
    """Return a unified diff from the files in effect on the host to those of ``release``, "" when nothing differs."""
    links = set(deployed.links.values()) | ({deployed.current} if deployed.current else set())
    old: dict[str, str] = {}
    for path, file in deployed.files.items():
        if path.startswith(f"{paths.UNITS}/lodger-") and not path.startswith(f"{paths.UNITS}/lodger-resume-"):
            old[f"units/{path.rpartition('/')[2]}"] = file.content
        for stored in links:
            prefix = f"{paths.RELEASES}/{stored}/"
            relative = path.removeprefix(prefix)
            service = relative.partition("/")[0]
            if path.startswith(prefix) and service != "units" and deployed.links.get(service) == stored:
                old[relative] = file.content
    new = {file.path: file.content for file in release.files}
    parts: list[str] = []
    for path in sorted({*old, *new}):
        before, after = old.get(path, ""), new.get(path, "")
        if before != after:
            parts += difflib.unified_diff(
                before.splitlines(keepends=True), after.splitlines(keepends=True), f"on the host/{path}", f"to be/{path}", n=2
            )
    return "".join(line if line.endswith("\n") else line + "\n" for line in parts)
