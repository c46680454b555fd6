"""The smoke checks passed on the running container."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from lodger.engines import learn, named
from lodger.engines.smoke import SmokeFigures, key_on_host
from lodger.host import facts, paths
from lodger.host.command import Transport
from lodger.host.facts.base import Facts
from lodger.release.service import Service
from lodger.states.base import Action, Check, NoUndo, State
from lodger.states.registry import state
from lodger.states.service_base import last_lines
from lodger.states.target import Target


@state("smoke_passed", each="worker", needs_running=True)
class SmokePassed(State):
    """The smoke checks passed on the running container; a record on the host says so."""

    def __init__(self, service: Service, host: str, expected: Mapping[str, Any], learns: Target | None = None) -> None:
        """Take the service, its host, and what smoke expects of it, as the release's manifest has it.

        ``learns`` is the target whose capacity plan the engine's figures correct, None to learn nothing. Raises Refused for
        an expectation that cannot be read.
        """
        self.name = f"smoke_passed({service.name.removeprefix('worker-')})"
        self._service, self._learns = service, learns
        self._ask = named(service.engine).smoke(expected)
        self._serving = facts.serving_fact(service.container, service.unit, host)
        self._record = f"smoked/{service.name}.json"
        self.facts = (facts.DEPLOYED, self._serving)

    @classmethod
    def of(cls, target: Target, item: Service) -> SmokePassed:
        """Return the state for ``item``."""
        expected = target.release.smoke.get(item.name, {})
        learns = target if target.options.learns else None
        return cls(item, target.host.name, expected, learns)

    def missing(self, read: Facts) -> str:
        """Return why it does not hold: no record names the running container."""
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
            key = key_on_host(transport, self._service.key_file)
            with transport.forward(serving.address, serving.port) as local:
                figures = self._ask(f"http://127.0.0.1:{local}", key, progress)
            return f"{figures}{self._learnt(figures)}; it says: {figures.reply[:200]}"

        note = json.dumps({"container": serving.container, "config": serving.config}) + "\n"
        record = paths.write(f"{paths.VAR}/{self._record}", note, why="record that this container passed")
        # A dry run cannot know the address of the container that will run then.
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = f"$(docker inspect -f '{form}' {self._service.container})"
        return [Check(f"smoke of {self._service.name} at http://{address}:{self._service.port}", look), record]

    def _learnt(self, figures: SmokeFigures) -> str:
        if self._learns is None:
            return ""
        worker = self._learns.host.workers[self._service.name.removeprefix("worker-")]
        return learn(self._learns.fleet, self._learns.host, worker, figures)

    def evidence(self, read: Facts) -> str:
        """Return the engine's last log lines."""
        return last_lines(read[self._serving].log)

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave the record: it is valid for one container only."""
        del before, now
        return NoUndo("the record is valid for that container only")
