"""Asking the hubs, from the host itself, what a model consists of: several hubs at once, each page again where that helps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from lodger.errors import Refused
from lodger.inventory import Fleet, Host, Model
from lodger.run.protocols import Connection
from lodger.weights import host as commands
from lodger.weights import plan as plans
from lodger.weights.hub import HUBS, HubError, HubSilent, Listing, Response
from lodger.weights.plan import FetchPlan
from lodger.weights.progress import Screen

_ASKED, _ASKED_IN_SILENCE = 4, 2  # times that a hub is asked for one page, and that one which does not answer is


class HubQuestions:
    """What the hubs of ``fleet`` say of a model, asked over the connection to ``host``."""

    def __init__(self, fleet: Fleet, host: Host, connection: Connection, screen: Screen) -> None:
        self.fleet, self.host, self.connection, self.screen = fleet, host, connection, screen

    def plan(self, model: Model) -> FetchPlan:
        """Return the plan that the hubs agree on; raise Refused when none of them has the revision."""
        endpoints = self.fleet.weights.endpoints
        with ThreadPoolExecutor(max_workers=len(endpoints)) as pool:
            asked = dict(zip(endpoints, pool.map(lambda hub: self._source(model, hub), endpoints), strict=True))
        sources = [said for said in asked.values() if isinstance(said, plans.Source)]
        failures = [
            f"{hub}: {said.what}{f' ({said.cause})' * bool(said.cause)}"
            for hub, said in asked.items()
            if not isinstance(said, plans.Source)
        ]
        try:
            plan = plans.agreed(sources, model.name, self.host.models_dir, model.directory, model.source, model.revision)
        except ValueError as error:
            before = self._remembered(model, sources)
            if before is None:
                raise Refused(
                    f"no source lists {model.source} at {model.revision or 'any revision'}",
                    cause="; ".join(failures) or str(error),
                    hint="check `source:` and `revision:` of the model, and `weights: endpoints:`, from the host itself",
                ) from error
            plan = before
            failures.append("no hub tells of this revision now; an earlier fetch was told, and left it on the host")
        for failure in failures:
            self.screen.note(self.host.name, f"{model.name}: {failure}")
        for source in sources:
            same = sum(any(url.startswith(source.endpoint) for url in file.urls) for file in plan.files)
            if not source.exact:
                what = f"{source.listing.source} does not know {model.revision}"
                self.screen.note(self.host.name, f"{model.name}: {what}; it gives the same {same} of {len(plan.files)} files")
        return plan

    def _remembered(self, model: Model, sources: Sequence[plans.Source]) -> FetchPlan | None:
        """Return the plan of an earlier fetch, if it is of the revision that no hub tells of today."""
        result = self.connection.run(commands.planned(model.name))
        endpoints = list(self.fleet.weights.endpoints.values())
        try:
            before = plans.parse_plan(result.stdout, self.host.models_dir, model.directory)
            return plans.remembered(before, sources, endpoints, model.source, model.revision)
        except (ValueError, KeyError):
            return None

    def _source(self, model: Model, hub: Literal["modelscope", "huggingface"]) -> plans.Source | HubError:
        """Return what a hub has; where it does not know the revision, what it has at its default branch."""
        endpoint = self.fleet.weights.endpoints[hub]

        def ask(revision: str | None) -> plans.Source:
            listing = plans.judged(self._converse(hub, endpoint, model.source, revision))
            return plans.Source(endpoint, listing, exact=revision == model.revision)

        try:
            return ask(model.revision)
        except HubError as error:
            if model.revision is None or isinstance(error, HubSilent):
                return error
            # A commit of one hub is unknown to the other, which may have the same files all the same.
            try:
                return ask(None)
            except HubError:
                return error

    def _converse(self, name: str, endpoint: str, repository: str, revision: str | None) -> Listing:
        conversation = HUBS[name](repository, revision)
        try:
            path = next(conversation)
            while True:
                path = conversation.send(self._page(endpoint + path))
        except StopIteration as end:
            listing: Listing = end.value
            return listing

    def _page(self, url: str) -> Response:
        """Return a hub's response; one that may be better later is asked for again."""
        for attempt in range(_ASKED):
            result = self.connection.run(commands.ask(url))
            last = attempt == _ASKED - 1
            if result.code == 0:
                response = commands.answered(result.code, result.stdout, result.stderr)
                if last or (response.status != 429 and response.status < 500):
                    return response
                said = response.headers.get("retry-after", "")
                wait(self.connection, min(60, max(1 << attempt, int(said) if said.isdigit() else 0)))
            elif attempt == _ASKED_IN_SILENCE - 1 or result.code in {
                3,
                6,
                7,
                35,
                60,
            }:  # a name, an address or a certificate gets no better by waiting
                break
            else:
                wait(self.connection, 1 << attempt)
        return commands.answered(result.code, result.stdout, result.stderr)


def wait(connection: Connection, seconds: float) -> None:
    """Wait so long; raise KeyboardInterrupt once the run is asked to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if connection.cancelled():
            raise KeyboardInterrupt
        time.sleep(min(0.2, max(0.0, end - time.monotonic())))
