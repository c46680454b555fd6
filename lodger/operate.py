"""From an inventory to a plan for the engine: what a deploy and a rollback are to establish on one host."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from lodger import capacity, facts, keys, paths, pauses
from lodger.command import Command, Secret, Transport, quote
from lodger.engine import Ledger, Plan
from lodger.errors import InventoryError, Refused, StateFailed, UsageError
from lodger.facts import Deployed, Fact, Facts
from lodger.footprint import Owner
from lodger.inventory import Fleet, Host
from lodger.keys import ApiKey
from lodger.membership import Mate, Seat, differences, header
from lodger.render import Release, render, url
from lodger.runbook import Runbook, annotated, expand
from lodger.serving.smoke import EngineFacts, Expectation
from lodger.states.base import Step
from lodger.states.catalog import Giving, Notice, Situation
from lodger.states.driver import Upgrade
from lodger.states.given import WayBack, forgetful, heeds
from lodger.states.neighbour import recorded
from lodger.states.reboot import Rebooted
from lodger.states.release import Content, manifest
from lodger.states.rotation import Keyring, Place, Roll
from lodger.states.served import Smoke
from lodger.states.service import Managed, services, unit_files

ENGINE_IMAGE_ROOM = 40 * 2**30  # bytes: 17.3 GiB compressed is kept while about twice that is unpacked
_FIRST: tuple[Fact[Any], ...] = (facts.MACHINE, facts.DEPLOYED, *facts.FOOTPRINT)


def managed(release: Release) -> dict[str, Managed]:
    """Return the services of a rendered release as the states know them."""
    return {
        service.name: Managed(
            name=service.name,
            kind=service.kind,
            unit=service.unit,
            container=service.container,
            config=service.config_hash,
            image=service.image,
            port=service.port,
            gpus=service.gpus,
            start=service.start_timeout_s,
            stop=service.stop_timeout_s,
            pool=service.pool,
            listen=service.listen,
            identity=service.identity,
            address=service.address,
            key=service.key,
        )
        for service in release.services
    }


def expectations(fleet: Fleet, host: Host) -> dict[str, dict[str, Any]]:
    """Return what smoke expects of each worker, as JSON for the manifest; the KV pool's floor is that of the capacity plan."""
    found = {
        f"worker-{name}": asdict(Expectation.of(fleet, host, worker, capacity.floor(fleet, host, worker)))
        for name, worker in host.workers.items()
    }
    return {name: {**values, "own": sorted(values["own"])} for name, values in found.items()}


def expectation(data: Mapping[str, Any]) -> Expectation:
    """Return what :func:`expectations` wrote; raise Refused for anything else."""
    try:
        return Expectation(**{**data, "own": frozenset(data.get("own", ()))})
    except (KeyError, TypeError) as error:
        hint = "deploy what you want to go back to from its own revision instead"
        raise Refused("what this release expects of smoke cannot be read", cause=f"{error}", hint=hint) from error


Learn = Callable[[EngineFacts], str]
"""What is done with the figures of an engine that passed; returns what to tell about it."""


def learning(fleet: Fleet, host: Host, service: str) -> Learn:
    """Return the comparison of a worker's engine with its capacity plan; what is learnt is kept beside the inventory."""
    worker = host.workers[service.removeprefix("worker-")]

    def learn(engine: EngineFacts) -> str:
        if engine.max_total_num_tokens is None:
            return ""
        compared = capacity.learn(fleet, host, worker, engine.max_total_num_tokens, engine.effective_max_running_requests)
        return f"; capacity: {compared}" if compared else ""

    return learn


def smoke(
    expected: Mapping[str, Any],
    say: Callable[[str], None] = lambda _: None,
    learn: Learn = lambda _: "",
    *,
    key: Secret | str | None = None,
) -> Smoke:
    """Return the smoke checks as an action of a state: they raise StateFailed, or return one line with a chat reply.

    ``key`` is what the worker asks for, or the file on its host with it: after a rollback only the host has it.
    """
    wanted = expectation(expected)

    def run(transport: Transport, address: str, port: int, progress: Callable[[str], None]) -> str:
        from lodger.serving.client import Client  # noqa: PLC0415  most tasks do without
        from lodger.serving.smoke import smoke as ask  # noqa: PLC0415

        held = _held(transport, key) if isinstance(key, str) else key
        with transport.forward(address, port) as local:
            client = Client(f"http://127.0.0.1:{local}", held)
            report = ask(client, wanted, progress=lambda check: progress(f"{check.name}: {check.detail}"))
        for check in report.failures:
            raise StateFailed(f"smoke check `{check.name}` failed: {check.detail}", hint=f"the setting is {check.setting}")
        say(report.reply)
        pace = f", {report.tokens_per_s:.0f} token/s" if report.tokens_per_s else ""
        first = f", first token after {report.ttft_s:.2f} s" if report.ttft_s is not None else ""
        learnt = learn(report.engine) if report.engine else ""
        return f"{len(report.checks)} smoke checks passed{first}{pace}{learnt}; it says: {report.reply.strip()[:200]}"

    return run


def _held(transport: Transport, path: str) -> Secret | None:
    if not path:
        return None
    read = Command(f"sed -n 's/^Authorization: Bearer //p' {quote([path])}", why="ask with the key that the worker has")
    return Secret(transport.run(read).check(transport.host).stdout.strip())


def neighbours(host: Host) -> dict[Owner, int]:
    """Return those who may be on the GPUs beside our workers, each with the memory (MiB a GPU) it was promised."""
    return {
        Owner(neighbour.kind, name): neighbour.gpu_memory_mib
        for name, neighbour in host.neighbours.items()
        if neighbour.policy == "pause"
    }


def turns(host: Host, gone: Mapping[str, Managed] = MappingProxyType({})) -> dict[str, str]:
    """Return service -> pool, those of ``gone`` too: within a pool only one host at a time restarts."""
    pools = {f"worker-{name}": worker.pool for name, worker in host.workers.items()}
    pools |= {name: service.pool for name, service in gone.items() if service.pool}
    return pools | ({"router": host.router.pool} if host.router else {})


def place(fleet: Fleet, host: Host, service: Managed, together: Collection[str] = (), runs: Managed | None = None) -> Place:
    """Return where a worker on ``host`` stands in its pool.

    ``together`` are the hosts that the same command changes, ``runs`` is the worker as it is installed now.
    """
    if service.kind != "worker" or service.pool not in fleet.pools:
        return Place()

    def seats(one: Managed) -> tuple[Seat, ...]:
        return tuple(
            Seat(
                url(host.name, other, other.router.listen, other.router.port),
                url(other.name, host, one.listen, one.port, one.address),
                other.name in {*together, host.name},
            )
            for _, other in sorted(fleet.hosts.items())
            if other.router is not None and other.router.pool == one.pool
        )

    mates = [
        Mate(f"worker {worker.name} on {other.name}", url(host.name, other, worker.listen, worker.port), other.name in together)
        for other, worker in fleet.pool_workers(service.pool)
        if (other.name, f"worker-{worker.name}") != (host.name, service.name)
    ]
    now = seats(service)
    former = tuple(seat for seat in (seats(runs) if runs else ()) if seat not in now)
    own = url(host.name, host, service.listen, service.port)
    return Place(own, now, tuple(mates), _keyring(fleet, service), former)


def roll(fleet: Fleet, host: Host, services: Mapping[str, Managed], together: Collection[str] = ()) -> Roll | None:
    """Return who is to stand behind the router among ``services`` of ``host``, None where there is none."""
    router = services.get("router")
    if router is None:
        return None
    pool = router.pool or (host.router.pool if host.router else "")  # an old manifest names no pool
    members = [
        Mate(f"worker {worker.name} on {other.name}", url(host.name, other, worker.listen, worker.port), other.name in together)
        for other, worker in fleet.pool_workers(pool)
        if other.name != host.name
    ]
    for service in services.values():
        if service.kind == "worker" and service.pool in {"", pool}:
            here = url(host.name, host, service.listen, service.port)
            members.append(Mate(f"{service.name} on {host.name}", here, changing=True))
    return Roll(url(host.name, host, router.listen, router.port), tuple(members), _keyring(fleet, router))


def _keyring(fleet: Fleet, service: Managed) -> Keyring:
    pool = service.pool
    keyed = bool(service.key) or (pool in fleet.pools and fleet.pools[pool].api_key_file is not None)
    return Keyring(header(pool, keyed), pool, service.key)


def places(
    fleet: Fleet,
    host: Host,
    services: Mapping[str, Managed],
    together: Collection[str] = (),
    present: Mapping[str, Managed] = MappingProxyType({}),
) -> dict[str, Place]:
    """Return where each of ``services`` stands in its pool; ``present`` are those that are installed now."""
    return {name: place(fleet, host, service, together, present.get(name)) for name, service in services.items()}


def earlier_keys(services: Mapping[str, Managed]) -> tuple[ApiKey, ...]:
    """Return the keys that the services of an earlier release ask for; only the host still has them."""
    return tuple(ApiKey(*one) for one in sorted({(service.pool, service.key) for service in services.values() if service.key}))


def pool_keys(fleet: Fleet, host: Host) -> tuple[ApiKey, ...]:
    """Return the keys of the pools that have a worker or router on ``host``."""
    pools = {worker.pool for worker in host.workers.values()} | ({host.router.pool} if host.router else set())
    return tuple(key for pool in sorted(pools) if (key := keys.of(fleet, pool)) is not None)


def deploy(
    fleet: Fleet,
    host: Host,
    runbook: Runbook,
    *,
    revision: str,
    contained: Callable[[str], bool],
    say: Callable[[str], None] = lambda _: None,
    together: Collection[str] = (),
) -> Plan:
    """Return the plan that makes ``host`` serve what the inventory says; ``together`` are the hosts of the same command.

    ``contained(revision)`` says whether this checkout has the deployed revision; where it has not, the plan refuses.
    """
    release = render(fleet, host)
    wanted = managed(release)
    expected = expectations(fleet, host)
    text = manifest(release.id, host.name, revision, list(wanted.values()), expected)
    pools = [fleet.pools[worker.pool] for worker in host.workers.values()]
    engine_images = {fleet.images[pool.image].reference for pool in pools}

    def situation(present: Mapping[str, Managed], paused: Collection[str] = ()) -> Situation:
        gone = {name: service for name, service in present.items() if name not in wanted}
        return Situation(
            host=host.name,
            release=release.id,
            paused=frozenset(paused),
            services=wanted,
            driver=host.driver,
            gpu_count=host.gpus.count,
            gpu_memory=host.gpus.memory_mib,
            cuda=max((fleet.images[pool.image].cuda or "" for pool in pools), default=""),
            files={file.path: Content(file.content, file.mode) for file in release.files},
            manifest=text,
            gone=gone,
            models={
                name: (f"{host.models_dir}/{fleet.models[name].directory}", fleet.models[name].size_bytes)
                for name in fleet.models_of(host)
            },
            image_room=dict.fromkeys(engine_images, ENGINE_IMAGE_ROOM),
            turns=turns(host, gone),
            neighbours=neighbours(host),
            replaced=tuple((n.kind, name) for name, n in host.neighbours.items() if n.policy == "replace"),
            smoke=lambda name: smoke(expected[name], say, learning(fleet, host, name), key=wanted[name].key_file),
            places=places(fleet, host, {**gone, **wanted}, together, present),
            roll=roll(fleet, host, wanted, together),
            keys=pool_keys(fleet, host),
        )

    def build(read: Facts, ledger: Ledger | None) -> tuple[list[Step], Mapping[str, Any]]:
        del ledger
        deployed = read[facts.DEPLOYED]
        present = installed(deployed)
        _refuse_older(deployed, contained)
        return expand(runbook, situation(present, pauses.paused(deployed))), {"release": release.id}

    # All that the states ask for, so that a deploy with nothing to do reads once.
    foreseen = [fact for step in expand(runbook, situation({})) for fact in (*step.state.facts, *step.state.undo_facts)]

    return Plan(
        "deploy",
        host.name,
        (*_FIRST, *foreseen),
        build,
        lambda read: difference(read[facts.DEPLOYED], release),
        remarks=lambda read: [*away(host, read), *_left_behind(read, situation(installed(read[facts.DEPLOYED])))],
    )


def away(host: Host, read: Facts) -> list[str]:
    """Return a line for each worker whose GPUs are given back: a run leaves it alone."""
    return [
        f"{pause}: it stays so; ./ops resume --host {host.name} --worker {pause.worker} ends it"
        for pause in pauses.paused(read[facts.DEPLOYED]).values()
    ]


def _left_behind(read: Facts, at: Situation) -> Iterator[str]:
    """Yield a line for each mate that does not answer while what the pool serves changes: nobody knows what it will serve."""
    present = installed(read[facts.DEPLOYED])
    changed = [
        at.places[name]
        for name, service in at.services.items()
        if name in present and differences(present[name].identity, service.identity)
    ]
    silent = {mate.name for where in changed for mate in where.mates if where.is_silent(mate, read) and not mate.changing}
    for name in sorted(silent):
        yield f"{name} does not answer, and may come back as it was: deploy its host too, what the pool serves changes"


def _refuse_older(deployed: Deployed, contained: Callable[[str], bool]) -> None:
    if not deployed.current:
        return
    revision = str(deployed.manifest(deployed.current).get("revision", ""))
    if not contained(revision):
        raise Refused(
            "what is deployed is newer than this checkout",
            cause=f"release {deployed.current} was made from revision {revision[:12]}, which is not in this checkout's history",
            hint="git pull, or --force to deploy the older state",
        )


def installed(deployed: Deployed) -> dict[str, Managed]:
    """Return the services that have a link or a unit on the host, as their releases define them."""
    found: dict[str, Managed] = {}
    for name, release in deployed.links.items():
        if release in deployed.stored:
            service = services(deployed, release).get(name)
            found |= {name: service} if service else {}
    return {**services(deployed, deployed.current), **found}


def secret(fleet: Fleet, expected: Mapping[str, Any]) -> Secret | None:
    """Return the key that the worker with these expectations asks for, None for none."""
    key = keys.of(fleet, expected["pool"]) if expected.get("pool") in fleet.pools else None
    return key.secret if key is not None else None


def rollback(
    fleet: Fleet, host: Host, runbook: Runbook, *, say: Callable[[str], None] = lambda _: None, together: Collection[str] = ()
) -> Plan:
    """Return the plan that goes one release back: to the last but one of the host's history, or to nothing.

    After a deploy that was cut off the target is what served before it. A rollback that was cut off keeps its target.
    """

    def build(read: Facts, ledger: Ledger | None) -> tuple[list[Step], Mapping[str, Any]]:
        deployed = read[facts.DEPLOYED]
        records = tuple(recorded(deployed))
        owed_before = recorded(Facts.load(ledger.before)[facts.DEPLOYED]) if ledger else records
        history = _earlier(deployed, ledger)
        target = history[-1] if history else ""
        present = installed(deployed)
        if ledger is None and not deployed.current and not records and not present:
            raise Refused("there is nothing to roll back", cause="no release is recorded on this host")
        wanted = services(deployed, target)
        expected = deployed.manifest(target).get("smoke", {}) if target else {}
        gone = {name: service for name, service in present.items() if name not in wanted}
        paused = frozenset(pauses.paused(deployed))
        _refuse_forgetful(deployed, target, [wanted[name] for name in sorted(paused & wanted.keys())])
        at = Situation(
            host=host.name,
            release=target,
            services=wanted,
            paused=paused,
            history=history,
            turns=turns(host, gone),
            gone=gone,
            neighbours=neighbours(host),
            replaced=tuple((n.kind, name) for name, n in host.neighbours.items() if n.policy == "replace"),
            # What only a deploy that was cut off had replaced does not wait for the last rollback.
            records=tuple(record for record in records if not target or record not in owed_before),
            smoke=lambda name: smoke(expected.get(name, {}), say, key=wanted[name].key_file),
            places=places(fleet, host, {**gone, **wanted}, together, present),
            roll=roll(fleet, host, wanted, together),
            keys=earlier_keys(wanted),
        )
        return expand(runbook, at), {"history": list(history)}

    return Plan("rollback", host.name, _FIRST, build, remarks=lambda read: away(host, read))


def _refuse_forgetful(deployed: Deployed, release: str, services: Sequence[Managed]) -> None:
    """Raise Refused for a release whose units would start a worker although its pause is recorded."""
    for service in services:
        unit, _ = unit_files(deployed, release, service.unit)
        if unit is not None and not heeds(service, unit):
            blocker = forgetful(service)
            raise Refused(blocker.what, cause=blocker.cause, hint=blocker.hint)


def maintenance(fleet: Fleet, host: Host, runbook: Runbook, *, now: bool = False) -> Plan:
    """Return the plan of any runbook but deploy and rollback: work on the host, with what it serves left as it is.

    Services are those of the release that the host serves. ``now`` passes over the hours in which neighbours may be paused.
    """
    declared = {Owner(neighbour.kind, name): neighbour.gpu_memory_mib for name, neighbour in host.neighbours.items()}
    goal = Upgrade(host.name, host.driver, host.gpus.count, declared)
    reboot = Rebooted()
    states = {name for block in runbook.blocks for name in block.names}
    reached, reads = (reboot.reached, reboot.reads) if "rebooted" in states else (goal.reached, goal.reads)
    # Every neighbour may run and have a GPU open, one that a deploy would replace too; the driver's own daemon as well.
    named = [(neighbour.kind, name) for name, neighbour in host.neighbours.items()]
    pausable = (*named, ("unit", "nvidia-persistenced.service"))

    def situation(
        release: str, serving: Mapping[str, Managed], expected: Mapping[str, Any], paused: Collection[str] = ()
    ) -> Situation:
        return Situation(
            host=host.name,
            release=release,
            services=serving,
            paused=frozenset(paused),
            driver=host.driver,
            gpu_count=host.gpus.count,
            gpu_memory=host.gpus.memory_mib,
            turns=turns(host),
            neighbours=neighbours(host),
            smoke=lambda name: smoke(expected.get(name, {}), key=serving[name].key_file),
            places=places(fleet, host, serving),
            upgrade=goal,
            pausable=pausable,
            warned=tuple(Notice(name, n.warn.command, n.warn.minutes) for name, n in host.neighbours.items() if n.warn),
            reached=reached,
            reads=reads,
        )

    def build(read: Facts, ledger: Ledger | None) -> tuple[list[Step], Mapping[str, Any]]:
        deployed = read[facts.DEPLOYED]
        if "neighbour_paused" in states and ledger is None and not now and not reached(read):
            _refuse_hours(host, read[facts.MACHINE].local_time)
        expected = deployed.manifest(deployed.current).get("smoke", {}) if deployed.current else {}
        serving = services(deployed, deployed.current)
        return expand(runbook, situation(deployed.current, serving, expected, pauses.paused(deployed))), {}

    # What the states will most likely ask for, so that a run with nothing to do reads once.
    foreseen = [
        fact
        for step in expand(runbook, situation("", _foreseen(fleet, host), expectations(fleet, host)))
        for fact in (*step.state.facts, *step.state.undo_facts)
    ]
    return Plan(
        runbook.name,
        host.name,
        (*_FIRST, *reads, *foreseen),
        build,
        document=lambda said: annotated(runbook, said),
        remarks=lambda read: away(host, read),
    )


def pause(fleet: Fleet, host: Host, runbook: Runbook, worker: str, *, who: str, until: str = "") -> Plan:
    """Return the plan that gives the GPUs of a worker back, until ``until`` by the host's clock ("": until it is resumed).

    Raises UsageError for a worker that the host does not have, and for a time that is none.
    """
    _has(host, worker)
    if until:
        pauses.check(until)

    def situation(service: Managed, end: str) -> Situation:
        where = place(fleet, host, service)
        way_back = WayBack(host.name, where, tuple(neighbours(host)))
        return Situation(
            host=host.name,
            release="",
            services={service.name: service},
            turns=turns(host),
            places={service.name: where},
            giving=Giving(who, end, way_back),
        )

    def build(read: Facts, ledger: Ledger | None) -> tuple[list[Step], Mapping[str, Any]]:
        _same_worker(ledger, worker)
        end = pauses.resolve(until, read[pauses.NOW]) if until else ""
        return expand(runbook, situation(_deployed(host, worker, read[facts.DEPLOYED]), end)), {"worker": worker}

    def remarks(read: Facts) -> list[str]:
        service = _deployed(host, worker, read[facts.DEPLOYED])
        where = place(fleet, host, service)
        alone = where.listed(read) and where.gap(read, service.start)  # without a router the state says it
        return (
            [f"worker {worker} is the only one that serves pool {service.pool}: it answers nothing meanwhile"] if alone else []
        )

    foreseen = _facts_of(runbook, [situation(service, "") for service in _foreseen_worker(fleet, host, worker)])
    return Plan("pause", host.name, (*_FIRST, pauses.NOW, *foreseen), build, remarks=remarks)


def resume(fleet: Fleet, host: Host, runbook: Runbook, worker: str, *, patience: float = 0.0) -> Plan:
    """Return the plan that brings a paused worker back; ``patience`` is how long (s) it waits for who is on its GPUs.

    Raises UsageError for a worker that the host does not have.
    """
    _has(host, worker)

    def situation(service: Managed, expected: Mapping[str, Any]) -> Situation:
        return Situation(
            host=host.name,
            release="",
            services={service.name: service},
            neighbours=neighbours(host),
            turns=turns(host),
            smoke=lambda name: smoke(expected.get(name, {}), key=service.key_file),
            places={service.name: place(fleet, host, service)},
            patience=patience,
        )

    def build(read: Facts, ledger: Ledger | None) -> tuple[list[Step], Mapping[str, Any]]:
        _same_worker(ledger, worker)
        deployed = read[facts.DEPLOYED]
        service = _deployed(host, worker, deployed)
        expected = deployed.manifest(deployed.current).get("smoke", {})
        return expand(runbook, situation(service, expected)), {"worker": worker}

    foreseen = _facts_of(
        runbook, [situation(service, expectations(fleet, host)) for service in _foreseen_worker(fleet, host, worker)]
    )
    return Plan("resume", host.name, (*_FIRST, *foreseen), build)


def _has(host: Host, worker: str) -> None:
    if worker not in host.workers:
        raise UsageError(f"{host.name} has no worker {worker}", hint=f"it has: {', '.join(host.workers) or 'none'}")


def _deployed(host: Host, worker: str, deployed: Deployed) -> Managed:
    """Return a worker as the host's current release has it; raise Refused where it has none of that name."""
    found = services(deployed, deployed.current).get(f"worker-{worker}")
    if found is None:
        hint = f"./ops deploy --host {host.name}"
        raise Refused(f"worker {worker} is not deployed", cause=f"no release on {host.name} has it", hint=hint)
    return found


def _same_worker(ledger: Ledger | None, worker: str) -> None:
    if ledger is not None and ledger.params.get("worker") != worker:
        other = ledger.params.get("worker")
        hint = f"end it first: {ledger.runbook} worker {other} once more"
        raise Refused(f"run {ledger.run} did not finish", cause=f"it is about worker {other}", hint=hint)


def _foreseen_worker(fleet: Fleet, host: Host, worker: str) -> list[Managed]:
    return [service for name, service in _foreseen(fleet, host).items() if name == f"worker-{worker}"]


def _facts_of(runbook: Runbook, situations: Sequence[Situation]) -> list[Fact[Any]]:
    """Return what the states will most likely ask for, so that a run with nothing to do reads once."""
    steps = [step for at in situations for step in expand(runbook, at)]
    return [fact for step in steps for fact in (*step.state.facts, *step.state.undo_facts)]


def _foreseen(fleet: Fleet, host: Host) -> dict[str, Managed]:
    """Return the services that the inventory would have there; none while its images are not pinned, for none was deployed."""
    try:
        return managed(render(fleet, host))
    except InventoryError:
        return {}


def _refuse_hours(host: Host, clock: str) -> None:
    for name, neighbour in host.neighbours.items():
        if neighbour.hours is None:
            continue
        start, _, end = neighbour.hours.partition("-")
        inside = start <= clock < end if start <= end else clock >= start or clock < end
        if not inside:
            raise Refused(
                f"{name} may only be paused from {start} to {end}",
                cause=f"it is {clock} on {host.name}",
                hint="come back then, or --now after asking its people",
            )


def _earlier(deployed: Deployed, ledger: Ledger | None) -> tuple[str, ...]:
    if ledger is not None and ledger.runbook == "rollback":
        return tuple(ledger.params["history"])
    if ledger is not None:
        return Facts.load(ledger.before)[facts.DEPLOYED].history  # it may have been cut off after it recorded its own release
    if (deployed.history or ("",))[-1] != deployed.current:
        last = deployed.history[-1] if deployed.history else "nothing"
        raise Refused(
            "it cannot be told what to go back to",
            cause=f"{paths.HISTORY} ends with {last}, {deployed.current or 'no release'} is current",
            hint="./ops deploy records what it deploys; or write the releases into the file, a line each, the current one last",
        )
    return deployed.history[:-1]


def difference(deployed: Deployed, release: Release) -> str:
    """Return a unified diff from what the host has in effect to what ``release`` would put there, "" when nothing differs."""
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


def serving(transport: Transport, host: Host, service: str) -> tuple[str, int]:
    """Return address and port of the container that the unit of ``service`` started; raise StateFailed when none runs."""
    name = f"lodger-{service}"
    fact = facts.serving_fact(name, f"{name}.service", host.name)
    found = facts.parse(transport.run(facts.command([fact])).check(host.name).stdout, host.name)[fact]
    if not found.address:
        hint = f"./ops deploy --host {host.name}"
        raise StateFailed(f"{service} does not run", cause=f"there is no running container {name} of ours", hint=hint)
    return found.address, found.port
