"""Fetching weights onto one host: look, ask the hubs, judge, refuse or start, and follow until it is done.

The transfer itself is the host's: a unit that goes on without us. Whoever comes later attaches to it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
from lodger.weights.ask_hubs import HubQuestions, wait
from lodger.weights.plan import FetchManifest, FetchPlan, FoundFolder
from lodger.weights.progress import Said, Screen, listen

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
                self.screen.note(self.host.name, f"{job.model.name}: would {what}{', as a fetch already does' * job.running}")
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
        plan = HubQuestions(self.fleet, self.host, self.connection, self.screen).plan(model)
        self._announce(plan, f"{plan.origin} at {plan.commit}")
        return plan

    def _announce(self, plan: FetchPlan, source: str) -> None:
        self.screen.note(self.host.name, f"{plan.model}: {len(plan.files)} files, {plan.size / 1e9:.2f} GB, {source}")

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
            wait(self.connection, _FASTEST_POLL - (time.monotonic() - begun))

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
        asked = list(fleet.models_of(host))
    return [fleet.models[name] for name in dict.fromkeys(asked)]
