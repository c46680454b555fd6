"""A worker or the router as a service of its host: installed, its GPUs free, ready, or gone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lodger import facts, paths, pauses
from lodger.command import Command, quote, run
from lodger.facts import Container, Deployed, Fact, Facts, Unit
from lodger.footprint import Owner, names, owners
from lodger.states.base import Blocker, NoUndo, State

MARK = "# io.lodger.host="
# What may be in a GPU's memory with nobody on it: the driver's own few MiB, and rounding (MiB).
_IDLE_MEMORY = 256
UP = {"active", "activating", "reloading", "deactivating"}


@dataclass(frozen=True)
class Managed:
    """A service as a release defines it; kept in the release's manifest, so that a rollback needs no inventory.

    ``config`` is the hash of its own files, ``gpus`` the numbers it uses, ``stop`` and ``start`` its longest (s). ``pool``
    it serves in, ``listen`` the address of its port, ``address`` that at which other hosts reach this one, ``identity`` what
    it serves by the names of /server_info, ``key`` the mark of the key that it asks for.
    """

    name: str
    kind: str
    unit: str
    container: str
    config: str
    image: str
    port: int
    gpus: tuple[int, ...]
    start: float
    stop: float
    pool: str = ""
    listen: str = "0.0.0.0"  # noqa: S104  # a manifest of before says nothing else
    identity: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    key: str = ""

    @property
    def key_file(self) -> str:
        """The file on the host with the header that it asks for, "" for none."""
        return paths.key(self.pool, self.key) if self.key else ""

    @staticmethod
    def load(data: Mapping[str, Any]) -> Managed:
        """Return the service that a manifest describes; raise TypeError or KeyError when it describes none."""
        return Managed(**{**data, "gpus": tuple(data["gpus"])})


def services(deployed: Deployed, release: str) -> dict[str, Managed]:
    """Return the services of a stored release by name, {} for no release; raise Refused when its manifest names none."""
    if not release:
        return {}
    try:
        return {item["name"]: Managed.load(item) for item in deployed.manifest(release)["services"]}
    except (KeyError, TypeError) as error:
        raise deployed.no_manifest(release, f"its services cannot be read ({error})") from error


def unit_files(deployed: Deployed, release: str, unit: str) -> tuple[str | None, str | None]:
    """Return the unit's text as ``release`` has it and as it is installed, None where there is none."""
    stored = deployed.files.get(f"{paths.RELEASES}/{release}/units/{unit}")
    installed = deployed.files.get(f"{paths.UNITS}/{unit}")
    return (stored.content if stored else None, installed.content if installed else None)


def drop_ins(deployed: Deployed, unit: str) -> dict[str, str]:
    """Return the files, path -> content, with which somebody changed a unit of ours from beside it (`systemctl edit`)."""
    return {path: file.content for path, file in deployed.files.items() if path.startswith(f"{paths.UNITS}/{unit}.d/")}


def _install(release: str, service: Managed) -> list[Command]:
    link, unit = f"{paths.SERVICES}/{service.name}", f"{paths.UNITS}/{service.unit}"
    source = f"{paths.RELEASES}/{release}"
    return [
        Command(
            f"mkdir -p {paths.SERVICES} && ln -sfn {quote([f'{source}/{service.name}', link + '.new'])}"
            f" && mv -fT {quote([link + '.new', link])}",
            why=f"let {service.name} run the files of release {release}",
        ),
        Command(
            f"install -m 0644 {quote([f'{source}/units/{service.unit}', unit + '.new'])}"
            f" && mv -f {quote([unit + '.new', unit])} && systemctl daemon-reload",
            why=f"install {service.unit}",
        ),
        run("systemctl", "enable", service.unit, why="start it at boot"),
    ]


def pause_places(service: Managed) -> pauses.Places:
    """Return where a pause of ``service`` stands on its host."""
    return pauses.Places(service.container)


def _remove(service: Managed) -> list[Command]:
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

    def __init__(self, service: Managed, host: str) -> None:
        self.service, self.host = service, host
        self._replaced: frozenset[Owner] = frozenset()
        self._unit = facts.unit_fact(service.unit)
        self._serving = facts.serving_fact(service.container, service.unit, host)

    def _container(self, read: Facts) -> Container | None:
        found = read[facts.CONTAINERS].get(self.service.container)
        return found if found is not None and found.labels.get("io.lodger.host") == self.host else None

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
        """Return the blocker for what ``owner`` has; it awaits the state that takes a neighbour, or another of ours, away."""
        if owner is None:
            return Blocker(what, cause, hint)
        if self._is_ours(owner, read):
            hint = f"two of ours cannot change places at once: deploy without {self.service.name}, then with it again"
            return Blocker(what, cause, hint, f"{owner.name} off its old GPUs")
        replaced = sorted(names(owner, read) & self._replaced, key=str)
        return Blocker(what, cause, hint, f"no {replaced[0]}" if replaced else "")

    def _is_ours(self, owner: Owner, read: Facts) -> bool:
        return owner.kind == "container" and read[facts.CONTAINERS][owner.name].labels.get("io.lodger.host") == self.host

    def _port_taken(self, read: Facts) -> list[Blocker]:
        who = owners(read)
        for port in read[facts.PORTS]:
            if port.protocol != "tcp" or port.port != self.service.port:
                continue
            owner = self._publisher(read) if port.process == "docker-proxy" else who.get(port.pid)
            if owner is not None and owner.name == self.service.container and self._is_ours(owner, read):
                continue
            what = f"port {self.service.port} is taken by {owner or port.process or 'an unknown process'}"
            hint = "choose another port, or declare it under `neighbours:` with policy replace"
            return [self._taken(owner, read, what, f"pid {port.pid} listens on {port.address}", hint)]
        return []

    def _publisher(self, read: Facts) -> Owner | None:
        for container in read[facts.CONTAINERS].values():
            if self.service.port in container.published:
                return Owner("container", container.name)
        return None


class ServiceInstalled(ServiceState):
    """The unit and the link to its files are those of the release, and it starts at boot. What runs is not touched.

    Its undo puts the previous files back and sees to it that what ran before is running and healthy again: it stands
    before the states that stop and start the service, so it is undone after them.
    """

    def __init__(self, service: Managed, host: str, release: str) -> None:
        """Take the service, its host's name, and the release whose files it is to run."""
        super().__init__(service, host)
        self.name = f"service_installed({service.name})"
        self._release = release
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, facts.CONTAINERS, self._unit)
        self.undo_facts = (facts.UNITS, self._serving)
        self.undo_deadline = service.start

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return that something of our name is not ours."""
        found = []
        container = read[facts.CONTAINERS].get(self.service.container)
        if container is not None and container.labels.get("io.lodger.host") != self.host:
            cause = f"container {container.id[:12]} has no label io.lodger.host={self.host}"
            found.append(
                Blocker(f"a container named {container.name} is not ours", cause, f"docker rename {container.name} other-name")
            )
        _, installed = unit_files(read[facts.DEPLOYED], self._release, self.service.unit)
        unit = read[self._unit]
        if installed is not None and f"{MARK}{self.host}" not in installed.splitlines():
            cause = f"{paths.UNITS}/{self.service.unit} has no line `{MARK}{self.host}`"
            found.append(Blocker(f"a unit named {self.service.unit} is not ours", cause, "rename it, or ask its owner to"))
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
        """Return which of link, unit file and enablement is not the release's."""
        deployed = read[facts.DEPLOYED]
        stored, installed = unit_files(deployed, self._release, self.service.unit)
        if deployed.links.get(self.service.name) != self._release:
            return f"{self.service.name} runs the files of {deployed.links.get(self.service.name) or 'no release'}"
        if stored is None or installed != stored:
            return f"{self.service.unit} is not the release's"
        for path in drop_ins(deployed, self.service.unit):
            return f"{path} changes {self.service.unit}"
        unit = read[self._unit]
        return "" if unit is not None and unit.file_state == "enabled" else f"{self.service.unit} is not enabled"

    def act(self, read: Facts) -> list[Command]:
        """Return link, unit and enablement, each put in place by a rename; nothing changes the unit from beside it."""
        beside = drop_ins(read[facts.DEPLOYED], self.service.unit)
        gone = run("rm", "-rf", f"{paths.UNITS}/{self.service.unit}.d", why=f"let {self.service.unit} be as it is written")
        return [*([gone] if beside else []), *_install(self._release, self.service)]

    def _was(self, before: Facts) -> Managed | None:
        deployed = before[facts.DEPLOYED]
        return services(deployed, deployed.current).get(self.service.name)

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        """Return what puts the previous release's service back, running if it ran, or removes the service."""
        was = self._was(before)
        if was is None:
            return _remove(self.service)
        there = drop_ins(now[facts.DEPLOYED], was.unit)
        beside = {path: text for path, text in drop_ins(before[facts.DEPLOYED], was.unit).items() if there.get(path) != text}
        back = [
            *(paths.write(path, text, why="put back what changed the unit") for path, text in beside.items()),
            *_install(before[facts.DEPLOYED].current, was),
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
                why="run it again as before",
                timeout=was.stop + 60,
            ),
        ]

    def _was_up(self, before: Facts) -> bool:
        unit = before[facts.UNITS].get(self.service.unit)
        return unit is not None and unit.active in UP

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what is not as it was: files, unit, or the health of what served before."""
        was, deployed = self._was(before), now[facts.DEPLOYED]
        if was is None:
            left = self._container(now) is not None or unit_files(deployed, self._release, self.service.unit)[1] is not None
            return f"{self.service.unit} or its container is still there" if left or self.service.name in deployed.links else ""
        release = before[facts.DEPLOYED].current
        stored, installed = unit_files(deployed, release, was.unit)
        if deployed.links.get(was.name) != release or stored is None or stored != installed:
            return f"{was.unit} is not that of release {release}"
        if drop_ins(deployed, was.unit) != drop_ins(before[facts.DEPLOYED], was.unit):
            return f"what changed {was.unit} from beside it is not there again"
        if not self._was_up(before):
            return ""
        serving = now[self._serving]
        if serving.config != was.config:
            return f"{was.name} does not run its previous configuration"
        return "" if serving.health == 200 or before[self._serving].health != 200 else f"{was.name} is not ready again"

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return that what was started again has ended for good."""
        return gave_up(now[self._unit], now[self._serving].log) if self._was_up(before) else ""


class ServiceGone(ServiceState):
    """A service of an earlier release that the new one does not have is stopped and removed, unit and container."""

    def __init__(self, service: Managed, host: str) -> None:
        """Take the service as the earlier release defines it, and its host's name."""
        super().__init__(service, host)
        self.name = f"service_gone({service.name})"
        self.facts: tuple[Fact[Any], ...] = (facts.DEPLOYED, facts.CONTAINERS, facts.UNITS, self._serving, facts.PROCESSES)
        self.provides = frozenset({f"{service.container} off its old GPUs"})
        self.undo_deadline = service.start
        self.deadline = 120.0

    def missing(self, read: Facts) -> str:
        """Return what of it is still there."""
        deployed = read[facts.DEPLOYED]
        if self._container(read) is not None:
            return f"the container {self.service.container} is still there"
        if f"{paths.UNITS}/{self.service.unit}" in deployed.files or self.service.name in deployed.links:
            return f"{self.service.unit} is still there"
        return "the record of its pause is still there" if self.service.name in pauses.paused(deployed) else ""

    def stops(self, read: Facts) -> list[str]:
        """Return the service when it runs."""
        return [self.service.unit] if self._runs(read) else []

    def act(self, read: Facts) -> list[Command]:
        """Return stop, removal of the container, and of unit and link."""
        del read
        return _remove(self.service)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what installs and starts it again; nothing for what only a run that was cut off had installed."""
        del now
        deployed = before[facts.DEPLOYED]
        if self.service.name not in services(deployed, deployed.current):
            return NoUndo("it was not there before")
        back = [*pauses.put_back(pause_places(self.service), deployed), *_install(deployed.current, self.service)]
        unit = before[facts.UNITS].get(self.service.unit)
        up = unit is not None and unit.active in UP
        return [*back, *([run("systemctl", "start", self.service.unit, why="run it again")] if up else [])]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that it does not serve as it did."""
        serving = now[self._serving]
        if before[self._serving].health == 200 and (serving.health != 200 or serving.config != self.service.config):
            return f"{self.service.name} is not ready again"
        return ""

    def undo_hopeless(self, before: Facts, now: Facts) -> str:
        """Return that it was started again and has ended for good."""
        del before
        return gave_up(now[facts.UNITS].get(self.service.unit), now[self._serving].log)


class GpusFree(ServiceState):
    """The worker's GPUs are its own: the right configuration runs on them already, or nobody but declared neighbours is there.

    The engine sizes its pools from the memory free at its start, and says nothing when that is too little, so the
    memory of a predecessor must really be gone. What may stay is what the neighbours were promised.
    """

    def __init__(self, service: Managed, host: str, *, neighbours: Mapping[Owner, int], replaced: Sequence[Owner]) -> None:
        """Take the service, its host, the neighbours that may share its GPUs (owner -> MiB), and those being replaced."""
        super().__init__(service, host)
        self.name = f"gpus_free({service.name})"
        self._neighbours, self._replaced = neighbours, frozenset(replaced)
        self.provides = frozenset({f"{service.container} off its old GPUs"})
        self.facts: tuple[Fact[Any], ...] = (*facts.FOOTPRINT, facts.DRIVER, self._unit)
        self.deadline = 180.0

    def _strangers(self, read: Facts) -> list[tuple[facts.Process, Owner]]:
        """Return who is on these GPUs and is neither us nor a declared neighbour."""
        who = owners(read)
        own = self._container(read)
        found = []
        for process in read[facts.PROCESSES].values():
            owner = who[process.pid]
            mine = own is not None and process.container == own.id
            known = mine or self._is_driver(process) or names(owner, read) & self._neighbours.keys()
            if set(process.gpus) & set(self.service.gpus) and not known:
                found.append((process, owner))
        return found

    @staticmethod
    def _is_driver(process: facts.Process) -> bool:
        return "nvidia-persistenced" in process.command or "nvidia-powerd" in process.command

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is on the GPUs, or on the port, without being named in the inventory."""
        found = []
        for process, owner in self._strangers(read):
            where = ", ".join(str(index) for index in process.gpus if index in self.service.gpus)
            what = f"GPU {where} is held by pid {process.pid} of user {process.user} ({owner})"
            hint = f"ask {process.user}, or declare it in the host file under `neighbours:`"
            found.append(self._taken(owner, read, what, f"its command is `{process.command[:120]}`", hint))
        return [*found, *self._port_taken(read)]

    def missing(self, read: Facts) -> str:
        """Return who or what is still on the GPUs."""
        if self._runs_this(read):
            return ""
        if self._runs(read):
            return f"{self.service.name} runs another configuration"
        strangers = self._strangers(read)
        if strangers:
            process, owner = strangers[0]
            first = min(set(process.gpus) & set(self.service.gpus))
            return f"GPU {first} is held by pid {process.pid} ({owner})"
        promised = sum(self._neighbours.values())
        for gpu in read[facts.DRIVER].gpus:
            if gpu.index in self.service.gpus and gpu.used > promised + _IDLE_MEMORY:
                return f"{gpu.used} MiB of GPU {gpu.index} are in use, {promised} MiB are promised to neighbours"
        return ""

    def stops(self, read: Facts) -> list[str]:
        """Return the service when it runs another configuration."""
        return [self.service.unit] if self._runs(read) and not self._runs_this(read) else []

    def act(self, read: Facts) -> list[Command]:
        """Return the stop of our own outdated worker; of anybody else, nothing."""
        unit = read[self._unit]
        if self._runs(read) or (unit is not None and unit.active in UP):
            return [
                run(
                    "systemctl", "stop", self.service.unit, why="its running requests end first", timeout=self.service.stop + 60
                )
            ]
        return []

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave the start to the state that puts the files back."""
        del before, now
        return NoUndo("service_installed starts it again with its previous files")


class ServiceReady(ServiceState):
    """The unit runs this configuration and the service answers at the address of the container that the unit started."""

    def __init__(self, service: Managed, host: str, *, replaced: Sequence[Owner] = ()) -> None:
        """Take the service, its host's name, and the neighbours that are being replaced."""
        super().__init__(service, host)
        self._replaced = frozenset(replaced)
        self.name = f"{service.kind}_ready({service.name.removeprefix(f'{service.kind}-')})"
        # A router has no GPUs whose state would look at its port.
        port = facts.FOOTPRINT if service.kind == "router" else ()
        self.facts: tuple[Fact[Any], ...] = (facts.MACHINE, facts.CONTAINERS, self._unit, self._serving, *port)
        self.deadline = service.start
        self.undo_deadline = service.stop

    def missing(self, read: Facts) -> str:
        """Return what keeps it from being ready."""
        unit, serving = read[self._unit], read[self._serving]
        if unit is None or unit.active != "active":
            return f"{self.service.unit} is {unit.active if unit else 'not installed'}"
        if serving.config != self.service.config:
            return f"{self.service.container} is not running this configuration"
        if serving.health != 200:
            return f"its health check answers {serving.health or 'nothing'}"
        return ""

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is on a router's port: on the host's own network its answers would be taken for the router's."""
        return self._port_taken(read) if self.service.kind == "router" else []

    def act(self, read: Facts) -> list[Command]:
        """Return the (re)start; nothing for a service that is still starting, which only needs time."""
        unit = read[self._unit]
        if unit is not None and unit.active == "active" and unit.restarts == 0 and self._runs_this(read):
            age = read[facts.MACHINE].uptime - int(unit.started or 0) / 1e6
            if age < self.service.start:
                return []
        name = quote([self.service.unit])
        script = f"systemctl reset-failed {name} 2>/dev/null; systemctl restart {name}"
        return [Command(script, why=f"start {self.service.name}", timeout=self.service.stop + 120)]

    def hopeless(self, read: Facts) -> str:
        """Return that the service ended after its start: a configuration that fails once fails again."""
        unit = read[self._unit]
        if unit is None:
            return ""
        if unit.active == "failed" or unit.restarts > 0 or unit.sub == "auto-restart":
            return cause_in(read[self._serving].log) or f"{self.service.unit} ended ({unit.result})"
        return ""

    def progress(self, read: Facts) -> str:
        """Return the phase of the start, from the engine's last log lines."""
        return phase(read[self._serving].log) or self.missing(read)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the stop of the new configuration; the previous one is started by service_installed's undo."""
        container, unit = self._container(before), before[self._unit]
        up = unit is not None and unit.active in UP  # a worker that was paused leaves its stopped container behind
        if up and container is not None and container.labels.get("io.lodger.config") == self.service.config:
            return NoUndo("the same configuration ran before")
        del now
        return [run("systemctl", "stop", self.service.unit, why="stop what did not work", timeout=self.service.stop + 60)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that the new configuration still runs."""
        unit: Unit | None = now[self._unit]
        del before
        return f"{self.service.unit} is still {unit.active}" if unit is not None and unit.active in UP else ""


# Log line -> what it means for a person who waits, in the order of a start (recordings: server/worker.log).
_PHASES = (
    (r"The server is fired up", "warmed up, waiting for /health"),
    (r"Uvicorn running on|Application startup complete", "warming up"),
    (r"Capture .*CUDA graph begin|Capturing (batches|num tokens)", "capturing CUDA graphs"),
    (r"Memory pool end|Cache is allocated", "memory pools allocated"),
    (r"Load weight end", "weights loaded"),
    (r"Load weight begin|loading shards", "loading weights"),
    (r"Init torch distributed", "starting the ranks"),
    (r"server_args=", "starting the engine"),
)
_CAUSE = re.compile(
    r"(nvidia-container-cli: .*|torch\.OutOfMemoryError: .*|\w*(?:Error|Exception|PanicException)\b: .*|error: .*"
    r"|unsatisfied condition: .*|No module named .*|Address already in use.*|Error response from daemon: .*"
    r"|Initialization failed.*)"
)


def phase(log: str) -> str:
    """Return how far a start has come, from its log; "" when the log does not say."""
    lines = log.splitlines()
    for line in reversed(lines):
        for pattern, meaning in _PHASES:
            if re.search(pattern, line):
                return meaning
    return ""


def last_lines(log: str) -> str:
    """Return what of ``log`` an operator is shown of a service that failed."""
    return "\n".join(line[:300] for line in log.splitlines()[-15:])


def gave_up(unit: Unit | None, log: str) -> str:
    """Return that systemd starts ``unit`` no more, and what ``log`` gives as the reason; "" between two restarts too."""
    ended, cause = unit.given_up if unit is not None else "", cause_in(log)
    return f"{ended}: {cause}" if ended and cause else ended


def cause_in(log: str) -> str:
    """Return the line of ``log`` that says why the service ended, "" when none does."""
    for line in reversed(log.splitlines()):
        # What a tool inside said stands at the end of a line that begins with what its caller says of it.
        inner = line.find("nvidia-container-cli: ")
        match = _CAUSE.search(line, max(inner, 0))
        if match:
            return match[1].strip()[:300]
    return ""
