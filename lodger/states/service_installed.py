"""The unit and the files of a service are those of the release."""

from __future__ import annotations

from typing import Any

from lodger.host import facts, paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.docker import HOST_LABEL
from lodger.host.ownership import MARK, is_own_container, is_own_file
from lodger.release.manifest import drop_ins, services, unit_files
from lodger.release.service import Service
from lodger.states.base import Blocker
from lodger.states.registry import state
from lodger.states.service_base import UP, ServiceState, gave_up, install, remove
from lodger.states.target import Target


@state("service_installed", each="service", undo_brings_back=True)
class ServiceInstalled(ServiceState):
    """The unit and the link to its files are those of the release, and it starts at boot. What runs is not touched.

    Its undo puts the previous files back and starts what ran before, until it is healthy: it comes before the states that
    stop and start the service, so it is undone after them.
    """

    def __init__(self, service: Service, host: str, release: str) -> None:
        """Take the service, its host's name, and the release whose files it is to run."""
        super().__init__(service, host)
        self.name = f"service_installed({service.name})"
        self._release = release
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, facts.CONTAINERS, self._unit)
        self.undo_facts = (facts.UNITS, self._serving)
        self.undo_deadline = service.start

    @classmethod
    def of(cls, target: Target, item: Service) -> ServiceInstalled:
        """Return the state for ``item``."""
        return cls(item, target.host.name, target.release.id)

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return a blocker when a container or unit with our name is not ours."""
        found = []
        container = read[facts.CONTAINERS].get(self.service.container)
        if container is not None and not is_own_container(container, self.host):
            cause = f"container {container.id[:12]} has no label {HOST_LABEL}={self.host}"
            found.append(
                Blocker(f"a container named {container.name} is not ours", cause, f"docker rename {container.name} other-name")
            )
        _, installed = unit_files(read[facts.DEPLOYED], self._release, self.service.unit)
        unit = read[self._unit]
        if installed is not None and not is_own_file(installed, self.host):
            cause = f"{paths.UNITS}/{self.service.unit} has no line `{MARK}{self.host}`"
            found.append(Blocker(f"a unit named {self.service.unit} is not ours", cause, "ask its owner to rename it"))
        elif unit is not None and unit.fragment not in {"", f"{paths.UNITS}/{self.service.unit}"}:
            found.append(
                Blocker(
                    f"a unit named {self.service.unit} is not ours",
                    f"it comes from {unit.fragment}",
                    "ask its owner to rename it",
                )
            )
        return found

    def missing(self, read: Facts) -> str:
        """Return which of link, unit file and enablement differs from the release."""
        deployed = read[facts.DEPLOYED]
        stored, installed = unit_files(deployed, self._release, self.service.unit)
        if deployed.links.get(self.service.name) != self._release:
            return f"{self.service.name} runs the files of {deployed.links.get(self.service.name) or 'no release'}"
        if stored is None or installed != stored:
            return f"{self.service.unit} is not the file of the release"
        for path in drop_ins(deployed, self.service.unit):
            return f"{path} changes {self.service.unit}"
        unit = read[self._unit]
        return "" if unit is not None and unit.file_state == "enabled" else f"{self.service.unit} is not enabled"

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that put link and unit in place, each by a rename, enable the unit, and remove drop-ins."""
        beside = drop_ins(read[facts.DEPLOYED], self.service.unit)
        gone = run("rm", "-rf", f"{paths.UNITS}/{self.service.unit}.d", why=f"remove the drop-ins of {self.service.unit}")
        return [*([gone] if beside else []), *install(self._release, self.service)]

    def _was(self, before: Facts) -> Service | None:
        deployed = before[facts.DEPLOYED]
        return services(deployed, deployed.current).get(self.service.name)

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        """Return the commands that put the service of the previous release back, running if it ran, or remove the service."""
        was = self._was(before)
        if was is None:
            return remove(self.service)
        there = drop_ins(now[facts.DEPLOYED], was.unit)
        beside = {path: text for path, text in drop_ins(before[facts.DEPLOYED], was.unit).items() if there.get(path) != text}
        back = [
            *(paths.write(path, text, why=f"put the drop-ins of {was.unit} back") for path, text in beside.items()),
            *install(before[facts.DEPLOYED].current, was),
        ]
        if not self._was_up(before):
            return back
        container = self._container(now)
        current = container is not None and container.running and container.labels.get("io.lodger.config") == was.config
        verb = "start" if current else "restart"
        return [
            *back,
            Command(
                f"systemctl reset-failed {quote([was.unit])} 2>/dev/null; {quote(['systemctl', verb, was.unit])}",
                why=f"start {was.name} again as before",
                timeout=was.stop + 60,
            ),
        ]

    def _was_up(self, before: Facts) -> bool:
        unit = before[facts.UNITS].get(self.service.unit)
        return unit is not None and unit.active in UP

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what is not as before: files, unit, or the health of what served."""
        was, deployed = self._was(before), now[facts.DEPLOYED]
        if was is None:
            left = self._container(now) is not None or unit_files(deployed, self._release, self.service.unit)[1] is not None
            return f"{self.service.unit} or its container is still there" if left or self.service.name in deployed.links else ""
        release = before[facts.DEPLOYED].current
        stored, installed = unit_files(deployed, release, was.unit)
        if deployed.links.get(was.name) != release or stored is None or stored != installed:
            return f"{was.unit} is not the file of release {release}"
        if drop_ins(deployed, was.unit) != drop_ins(before[facts.DEPLOYED], was.unit):
            return f"the drop-ins of {was.unit} are not back"
        if not self._was_up(before):
            return ""
        serving = now[self._serving]
        if serving.config != was.config:
            return f"{was.name} does not run its previous configuration"
        return "" if serving.health == 200 or before[self._serving].health != 200 else f"{was.name} is not ready again"

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return why waiting cannot help: it was started again and systemd gave up."""
        return gave_up(self.service, now[self._unit], now[self._serving].log) if self._was_up(before) else ""
