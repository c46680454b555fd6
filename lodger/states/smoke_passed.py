"""The smoke checks passed on the container that runs."""

from __future__ import annotations

import json
from collections.abc import Callable

from lodger.host import facts, paths
from lodger.host.command import Transport
from lodger.host.facts.base import Facts
from lodger.release.service import Service
from lodger.states.base import Action, Check, NoUndo, State
from lodger.states.service_base import last_lines

Smoke = Callable[[Transport, str, int, Callable[[str], None]], str]


class SmokePassed(State):
    """The smoke checks passed on this very container; a record on the host says so."""

    def __init__(self, service: Service, host: str, smoke: Smoke) -> None:
        """Take the service, its host, and the checks: (transport, address, port, progress) -> one line of result."""
        self.name = f"smoke_passed({service.name.removeprefix('worker-')})"
        self._service, self._smoke = service, smoke
        self._serving = facts.serving_fact(service.container, service.unit, host)
        self._record = f"smoked/{service.name}.json"
        self.facts = (facts.DEPLOYED, self._serving)

    def missing(self, read: Facts) -> str:
        """Return that no record names the container that runs."""
        container = read[self._serving].container
        try:
            passed = json.loads(read[facts.DEPLOYED].record(self._record) or "{}").get("container")
        except ValueError:
            passed = None
        return (
            ""
            if container and passed == container
            else f"{self._service.name} has not passed its smoke checks since it started"
        )

    def act(self, read: Facts) -> list[Action]:
        """Return the checks, then the record."""
        serving = read[self._serving]

        def look(transport: Transport, progress: Callable[[str], None]) -> str:
            return self._smoke(transport, serving.address, serving.port, progress)

        note = json.dumps({"container": serving.container, "config": serving.config}) + "\n"
        record = paths.write(f"{paths.VAR}/{self._record}", note, why="record that this container passed")
        # The address is that of the container that will run then, which no dry run can know.
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = f"$(docker inspect -f '{form}' {self._service.container})"
        return [Check(f"smoke of {self._service.name} at http://{address}:{self._service.port}", look), record]

    def evidence(self, read: Facts) -> str:
        """Return the engine's last log lines, where its health is gone."""
        return last_lines(read[self._serving].log)

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave the record: it names a container, and means nothing for another."""
        del before, now
        return NoUndo("the record names a container and holds for no other")
