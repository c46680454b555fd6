"""What the states of one service share: unit, container, port, log."""

from __future__ import annotations

from lodger.engines import named
from lodger.host import facts, paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Facts
from lodger.host.facts.docker import Container
from lodger.host.facts.machine import Unit
from lodger.host.ownership import Owner, is_ours, is_own_container, names, owners, port_owner
from lodger.release import pauses
from lodger.release.service import Service
from lodger.states.base import Blocker, State

UP = {"active", "activating", "reloading", "deactivating"}


def install(release: str, service: Service) -> list[Command]:
    """Return the commands that install a service with the files of ``release``: link, unit, start at boot."""
    link, unit = f"{paths.SERVICES}/{service.name}", f"{paths.UNITS}/{service.unit}"
    source = f"{paths.RELEASES}/{release}"
    return [
        Command(
            f"mkdir -p {paths.SERVICES} && ln -sfn {quote([f'{source}/{service.name}', link + '.new'])}"
            f" && mv -fT {quote([link + '.new', link])}",
            why=f"point {service.name} to the files of release {release}",
        ),
        Command(
            f"install -m 0644 {quote([f'{source}/units/{service.unit}', unit + '.new'])}"
            f" && mv -f {quote([unit + '.new', unit])} && systemctl daemon-reload",
            why=f"install {service.unit}",
        ),
        run("systemctl", "enable", service.unit, why=f"start {service.unit} at boot"),
    ]


def pause_places(service: Service) -> pauses.Places:
    """Return the paths of a pause of ``service`` on its host."""
    return pauses.Places(service.container)


def remove(service: Service) -> list[Command]:
    """Return the commands that stop a service and remove all of it."""
    link, unit = f"{paths.SERVICES}/{service.name}", f"{paths.UNITS}/{service.unit}"
    compose = quote(["docker", "compose", "-p", service.container, "-f", f"{link}/compose.yml", "down"])
    return [
        run("systemctl", "disable", "--now", service.unit, why=f"stop {service.unit}", timeout=service.stop + 60, ok=(0, 1, 5)),
        Command(
            f"[ ! -e {quote([link + '/compose.yml'])} ] || {compose}",
            why="remove its stopped container and network",
            timeout=120,
        ),
        Command(
            f"rm -rf {quote([link, unit, unit + '.d'])} && systemctl daemon-reload"
            f" && {{ systemctl reset-failed {quote([service.unit])} 2>/dev/null || true; }}",
            why=f"remove {service.unit}",
        ),
        *([pauses.forget(pause_places(service))] if service.kind == "worker" else []),
    ]


class ServiceState(State):
    """What the states of one service share: its unit, its container by label, its readiness."""

    def __init__(self, service: Service, host: str) -> None:
        self.service, self.host = service, host
        self._replaced: frozenset[Owner] = frozenset()
        self._unit = facts.unit_fact(service.unit)
        self._serving = facts.serving_fact(service.container, service.unit, host)

    def _container(self, read: Facts) -> Container | None:
        found = read[facts.CONTAINERS].get(self.service.container)
        return found if is_own_container(found, self.host) else None

    def _runs(self, read: Facts) -> bool:
        container = self._container(read)
        return container is not None and container.running

    def _runs_this(self, read: Facts) -> bool:
        container = self._container(read)
        return container is not None and container.running and container.labels.get("io.lodger.config") == self.service.config

    def evidence(self, read: Facts) -> str:
        """Return the last log lines, where they were read."""
        return last_lines(read[self._serving].log) if self._serving in read else ""

    def _taken(self, owner: Owner | None, read: Facts, what: str, cause: str, hint: str) -> Blocker:
        """Return the blocker for what ``owner`` uses; it awaits the state that stops a neighbour or another service of ours."""
        if owner is None:
            return Blocker(what, cause, hint)
        if is_ours(owner, read, self.host):
            if owner.kind == "unit":
                return Blocker(
                    what, cause, f"it is a step of Lodger and ends by itself; to see it: systemctl status {owner.name}"
                )
            hint = f"one run cannot swap two services: deploy without {self.service.name} in the inventory, then again with it"
            return Blocker(what, cause, hint, f"{owner.name} off its old GPUs")
        replaced = sorted(names(owner, read) & self._replaced, key=str)
        return Blocker(what, cause, hint, f"no {replaced[0]}" if replaced else "")

    def _port_taken(self, read: Facts) -> list[Blocker]:
        who = owners(read)
        for port in read[facts.PORTS]:
            if port.protocol != "tcp" or port.port != self.service.port:
                continue
            owner = port_owner(port, who, read)
            if owner is not None and owner.name == self.service.container and is_ours(owner, read, self.host):
                continue
            what = f"port {self.service.port} is taken by {owner or port.process or 'an unknown process'}"
            hint = "choose another port, or declare it under `neighbours:` with policy replace"
            return [self._taken(owner, read, what, f"pid {port.pid} listens on {port.address}", hint)]
        return []


def last_lines(log: str) -> str:
    """Return the last lines of ``log``, to show for a service that failed."""
    return "\n".join(line[:300] for line in log.splitlines()[-15:])


def gave_up(service: Service, unit: Unit | None, log: str) -> str:
    """Return why systemd will not start ``unit`` again, with the reason from ``log``; "" when it may, as between restarts."""
    ended, cause = unit.given_up if unit is not None else "", named(service.engine).log.cause(log)
    return f"{ended}: {cause}" if ended and cause else ended
