"""Fetching weights onto one host: look, ask the hubs, judge, refuse or start, and follow until it is done.

The transfer itself is the host's: a unit that goes on without us. Whoever comes later attaches to it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lodger.errors import ConnectionLost, LodgerError, Refused, StateFailed
from lodger.host import facts
from lodger.host.command import Command, Result
from lodger.host.identity import refuse_other_machine
from lodger.inventory import Fleet, Host, Model
from lodger.run.outcome import RunResult, StateResult, Status
from lodger.run.protocols import Connection
from lodger.weights import host as commands
from lodger.weights import model_files
from lodger.weights import plan as plans
from lodger.weights.hub import HUBS, HubError, HubSilent, Listing, Response
from lodger.weights.plan import FetchManifest, FetchPlan, FoundFolder
from lodger.weights.progress import Said, Screen, listen

_ASKED, _ASKED_IN_SILENCE = 4, 2  # times that a hub is asked for one page, and that one which does not answer is
_FASTEST_POLL, _SLOWEST_POLL = 0.5, 5.0  # seconds between two looks at a fetch


class CommandLog(Protocol):
    """The part of a journal that a fetch writes."""

    def intent(self, state: str, command: object) -> None:
        """Note what is about to be done."""

    def result(self, state: str, result: Result) -> None:
        """Note what came of it."""


@dataclass(frozen=True)
class FetchOptions:
    """What the operator asks for beside fetching: hash everything anew, put right what differs, stop, or only look."""

    verify: bool = False
    replace: bool = False
    cancel: bool = False
    dry_run: bool = False

    @property
    def found(self) -> str:
        """What a fetch with these options has found where there was nothing to change."""
        if self.dry_run:
            return "nothing was changed"
        if self.cancel:
            return "no fetch is at work"
        return "every hash is right" if self.verify else "all files are there"


@dataclass(frozen=True)
class Giver:
    """A host that has weights and gives them to another."""

    host: Host
    connection: Connection


@dataclass
class _Job:
    """One model on its way: the plan, how much of the log was read, and what it came to."""

    model: Model
    plan: FetchPlan
    running: bool = False
    seen: int = 0
    said: Said = field(default_factory=Said)
    began: float = field(default_factory=time.monotonic)
    over: bool = False


class Fetch:
    """One run of `fetch` on one host."""

    def __init__(
        self,
        fleet: Fleet,
        host: Host,
        connection: Connection,
        log: CommandLog,
        screen: Screen,
        options: FetchOptions,
        giver: Giver | None,
    ) -> None:
        self.fleet, self.host, self.connection, self.log, self.screen = fleet, host, connection, log, screen
        self.options, self.giver = options, giver

    def run(self, models: Sequence[Model], outcome: RunResult) -> None:
        """Fetch ``models`` and put into ``outcome`` what came of each; raises what ends it all."""
        readings = {model.name: commands.reading(self.host.models_dir, model) for model in models}
        asked = [facts.MACHINE, *(fact for one in readings.values() for fact in (one.found, one.manifest, one.running))]
        read = facts.parse(self._ask(facts.command(asked)).check(self.host.name).stdout, self.host.name)
        refuse_other_machine(self.host.machine_id, read[facts.MACHINE])
        if self.options.cancel:
            self._cancel(models, readings, read, outcome)
            return
        jobs: list[_Job] = []
        for model in models:
            one = readings[model.name]
            job = self._attach(model) if read[one.running] else self._job(model, read[one.found], read[one.manifest])
            if job is None:
                outcome.states.append(StateResult(_name(model), Status.SATISFIED))
            else:
                jobs.append(job)
        self._refuse_for_room([(job, read[readings[job.model.name].found]) for job in jobs if not job.running])
        if self.options.dry_run:
            for job in jobs:
                need = plans.needed(job.plan, read[readings[job.model.name].found])
                what = "hash everything" if self.options.verify else f"fetch {need / 1e9:.2f} of {job.plan.size / 1e9:.2f} GB"
                self.screen.note(self.host.name, f"{job.model.name}: would {what}{', as a fetch does by now' * job.running}")
            return
        for job in jobs:
            self._start(job)
        self._follow(jobs)
        self._conclude(jobs, outcome)

    # ------------------------------------------------------------ deciding

    def _job(self, model: Model, found: FoundFolder, manifest: FetchManifest | None) -> _Job | None:
        """Return what is to be done for a model; None when its manifest says that all is there."""
        root, directory = self.host.models_dir, model.directory
        if self.options.verify:
            if manifest is None:
                raise Refused(
                    f"no fetch has recorded what {root}/{directory} should have",
                    hint="fetch it without --verify: what is there is hashed and kept",
                )
            return _Job(model, plans.from_manifest(manifest, model.name, root, directory))
        if manifest is not None and manifest.answers(model.revision) and plans.complete(manifest, found):
            self.screen.note(self.host.name, f"{model.name}: {len(manifest.files)} files are there, {manifest.commit[:12]}")
            self._report_strangers(model, found, list(manifest.files))
            if not self.options.dry_run:
                self._keep_small_files(model, plans.from_manifest(manifest, model.name, root, directory))
            return None
        plan = self._from_giver(model, self.giver) if self.giver is not None else self._from_hubs(model)
        plans.refuse(plan, manifest, found, overwrite=self.options.replace)
        if model.size_bytes is not None and plan.size < model.size_bytes:
            self.screen.note(
                self.host.name, f"{model.name}: the hub lists {plan.size} bytes, `size_bytes:` says {model.size_bytes}"
            )
        unproved = sum(file.hash.kind == "none" for file in plan.files)
        if unproved:
            self.screen.note(
                self.host.name, f"{model.name}: the hub gives no usable hash for {unproved} files, only their size"
            )
        self._report_strangers(model, found, [file.path for file in plan.files] + list(manifest.files if manifest else []))
        return _Job(model, plan)

    def _report_strangers(self, model: Model, found: FoundFolder, paths: Sequence[str]) -> None:
        others = plans.strangers(paths, found)
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            self.screen.note(
                self.host.name, f"{model.name}: not of this model, left alone in its folder: {', '.join(others[:3])}{more}"
            )

    def _from_hubs(self, model: Model) -> FetchPlan:
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
        self._announce(plan, f"{plan.origin} at {plan.commit}")
        return plan

    def _remembered(self, model: Model, sources: Sequence[plans.Source]) -> FetchPlan | None:
        """Return the plan of an earlier fetch, if it is of the revision that no hub tells of today."""
        result = self._ask(commands.planned(model.name))
        endpoints = list(self.fleet.weights.endpoints.values())
        try:
            before = plans.parse_plan(result.stdout, self.host.models_dir, model.directory)
            return plans.remembered(before, sources, endpoints, model.source, model.revision)
        except (ValueError, KeyError):
            return None

    def _announce(self, plan: FetchPlan, source: str) -> None:
        self.screen.note(self.host.name, f"{plan.model}: {len(plan.files)} files, {plan.size / 1e9:.2f} GB, {source}")

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
            result = self._ask(commands.ask(url))
            last = attempt == _ASKED - 1
            if result.code == 0:
                response = commands.answered(result.code, result.stdout, result.stderr)
                if last or (response.status != 429 and response.status < 500):
                    return response
                said = response.headers.get("retry-after", "")
                self._wait(min(60, max(1 << attempt, int(said) if said.isdigit() else 0)))
            elif attempt == _ASKED_IN_SILENCE - 1 or result.code in {
                3,
                6,
                7,
                35,
                60,
            }:  # a name, an address or a certificate gets no better by waiting
                break
            else:
                self._wait(1 << attempt)
        return commands.answered(result.code, result.stdout, result.stderr)

    def _from_giver(self, model: Model, giver: Giver) -> FetchPlan:
        """Return the plan that takes a model from another host; raise Refused where that host does not have it whole."""
        one = commands.reading(giver.host.models_dir, model)
        read = facts.parse(giver.connection.run(facts.command([one.found, one.manifest])).check().stdout, giver.host.name)
        manifest, found = read[one.manifest], read[one.found]
        if manifest is None or not plans.complete(manifest, found):
            raise Refused(
                f"{giver.host.name} does not have {model.name} as a fetch leaves it",
                cause="it has no manifest" if manifest is None else "files differ from its manifest",
                hint=f"./ops fetch --host {giver.host.name} first: what is there is hashed and kept",
            )
        if not manifest.answers(model.revision):
            raise Refused(
                f"{giver.host.name} has {model.name} at {manifest.commit}, not at {model.revision}",
                hint=f"./ops fetch --host {giver.host.name} first",
            )
        plan = plans.from_manifest(manifest, model.name, self.host.models_dir, model.directory)
        self._announce(plan, f"from {giver.host.name}")
        return plan

    def _refuse_for_room(self, wanted: Sequence[tuple[_Job, FoundFolder]]) -> None:
        need = sum(plans.needed(job.plan, found) for job, found in wanted)
        for job, found in wanted:
            if need > found.free:
                raise plans.no_room(need, found, job.plan.target)

    # ------------------------------------------------------------ acting

    def _attach(self, model: Model) -> _Job:
        """Return the fetch that runs already; raise Refused when it is of another revision."""
        text = self._ask(commands.planned(model.name)).check(self.host.name).stdout
        plan = plans.parse_plan(text, self.host.models_dir, model.directory)
        if model.revision is not None and model.revision not in {plan.revision, plan.commit}:
            raise self._another(model, plan.commit)
        self.screen.note(self.host.name, f"{model.name}: a fetch is at work, attached to it")
        return _Job(model, plan, running=True)

    def _another(self, model: Model, what: str) -> Refused:
        return Refused(
            f"another fetch of {model.name} is at work on {self.host.name}",
            cause=f"it fetches {what}",
            hint=f"./ops fetch --host {self.host.name} --cancel ends it",
        )

    def _start(self, job: _Job) -> None:
        if job.running:
            return
        plan, share, token = job.plan, "", ""
        if self.giver is not None and not self.options.verify:
            token = secrets.token_hex(8)
            share = self._share(job, self.giver, token)
            plan = plan.taken_from(share)
        text = plan.text(rehash=self.options.verify, overwrite=self.options.replace, share=share)
        said = self._act(_name(job.model), commands.start(plan, text)).check(self.host.name).stdout.split()
        if said[:1] == ["running"]:
            if self.giver is not None and token:
                self.giver.connection.run(commands.unshare(job.model.name, token))
            if said[1:] != [plan.id]:
                raise self._another(job.model, "something else")

    def _share(self, job: _Job, giver: Giver, token: str) -> str:
        """Have the other host serve the model; return the URL of its folder."""
        folder = f"{giver.host.models_dir}/{job.model.directory}"
        command = commands.share(job.model.name, folder, token, [file.path for file in job.plan.files])
        self.log.intent(f"serve from {giver.host.name}", command)
        result = giver.connection.run(command)
        self.log.result(f"serve from {giver.host.name}", result)
        port = int(result.check(giver.host.name).stdout.strip())
        return f"http://{giver.host.service_address or giver.host.address}:{port}/{token}"

    def _cancel(
        self, models: Sequence[Model], readings: Mapping[str, commands.WeightsFacts], read: facts.Facts, outcome: RunResult
    ) -> None:
        for model in models:
            name = f"fetch_stopped({model.name})"
            if not read[readings[model.name].running]:
                outcome.states.append(StateResult(name, Status.SATISFIED))
                continue
            if self.options.dry_run:
                self.screen.note(self.host.name, f"{model.name}: would stop the fetch that is at work")
                continue
            self._act(name, commands.cancel(model.name)).check(self.host.name)
            outcome.states.append(StateResult(name, Status.DONE))
            outcome.changed.append(name)

    def _follow(self, jobs: Sequence[_Job]) -> None:
        """Show how far the fetches are until all have ended. Whoever leaves earlier leaves them at work."""
        patience = 0.0
        while True:
            begun = time.monotonic()
            for job in [one for one in jobs if not one.over]:
                try:
                    result = self.connection.run(commands.poll(job.model.name, job.plan.target, job.seen, patience))
                except ConnectionLost:
                    self.screen.note(self.host.name, "the connection was lost, the fetch goes on; connecting again")
                    self.connection.reconnect()
                    continue
                glimpse = commands.parse_poll(result.stdout)
                job.seen += len(glimpse.lines)
                job.said = listen(job.said, glimpse.lines)
                for text in job.said.news:
                    self.screen.note(self.host.name, f"{job.model.name}: {text}")
                self.screen.show(self.host.name, job.plan, job.said, glimpse)
                job.over = not glimpse.alive or job.said.end != ""
                patience = 0.0  # one fetch of a host is at work at a time: the first of them is waited for
            if all(job.over for job in jobs):
                return
            # Soon at first, seldom later, but for its end. A fetch that does not hold its lock yet is not waited for.
            patience = min(_SLOWEST_POLL, max(_FASTEST_POLL, (time.monotonic() - jobs[0].began) / 60))
            self._wait(_FASTEST_POLL - (time.monotonic() - begun))

    def _conclude(self, jobs: Sequence[_Job], outcome: RunResult) -> None:
        failure: LodgerError | None = None
        for job in jobs:
            seconds, name = time.monotonic() - job.began, _name(job.model)
            if job.said.end == "ok":
                changed = not self.options.verify and any(at == "done" for at in job.said.doing.values())
                outcome.states.append(StateResult(name, Status.DONE if changed else Status.SATISFIED, seconds))
                outcome.changed += [name] if changed else []
                if not self.options.verify:
                    self._keep_small_files(job.model, job.plan)
                continue
            outcome.states.append(StateResult(name, Status.FAILED, seconds, job.said.end))
            failure = failure or self._failure(job)
        if failure is not None:
            raise failure

    def _failure(self, job: _Job) -> LodgerError:
        model, host = job.model.name, self.host.name
        if not job.said.end and not job.said.errors:
            return StateFailed(f"the fetch of {model} was cut short on the host", hint="run this again: what is there is kept")
        what = job.said.end or "it was cut short"
        hint = "run this again: it goes on from what is there"
        if self.options.verify:
            hint = f"./ops fetch --host {host} --replace fetches again what has changed"
        elif any("other content" in error or "cannot be proved" in error for error in job.said.errors):
            hint = "if nobody needs it as it is, run this again with --replace"
        elif any("cannot be written" in error for error in job.said.errors):
            hint = "make room below models_dir, then run this again: it goes on from what is there"
        more = f"; and {len(job.said.errors) - 2} more" if len(job.said.errors) > 2 else ""
        return StateFailed(f"{model}: {what}", cause="; ".join(job.said.errors[:2]) + more, hint=hint)

    def _keep_small_files(self, model: Model, plan: FetchPlan) -> None:
        """Copy what the capacity model reads beside the inventory, missing or reconstructed there; say what differs."""
        folder = self.fleet.folder / "models" / model.name
        contents = {
            name: self._ask(commands.small_file(plan.target, name)).check(self.host.name).stdout
            for name in model_files.unread(plan, folder)
        }
        if model_files.INDEX not in {file.path for file in plan.files} and not (folder / "tensors.json").is_file():
            contents[model_files.INDEX] = model_files.index(plan)
        for name, content in contents.items():
            if said := model_files.keep(folder / name, content):
                self.screen.note(self.host.name, f"{model.name}: {said}")

    # ------------------------------------------------------------ the connection

    def _ask(self, command: Command) -> Result:
        return self.connection.run(command)

    def _act(self, state: str, command: Command) -> Result:
        self.log.intent(state, command)
        result = self.connection.run(command)
        self.log.result(state, result)
        return result

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.connection.cancelled():
                raise KeyboardInterrupt
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))


def _name(model: Model) -> str:
    return f"weights_fetched({model.name})"


def chosen(fleet: Fleet, host: Host, names: str | None, refuse: Callable[[str], LodgerError]) -> list[Model]:
    """Return the models that a host's workers need, or those of ``names``; ``refuse`` makes the error for one that is none."""
    if names:
        asked = [name.strip() for name in names.split(",") if name.strip()]
        for name in asked:
            if name not in fleet.models:
                raise refuse(name)
    else:
        engines = [(fleet.pools[worker.pool].model, fleet.settings(worker).draft) for worker in host.workers.values()]
        asked = [name for model, draft in engines for name in (model, draft.model if draft else None) if name]
    return [fleet.models[name] for name in dict.fromkeys(asked)]
