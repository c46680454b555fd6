"""The affinity probe on real connections: the deployed router, and for comparison a second one with round_robin."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from lodger.checks.affinity import trials
from lodger.checks.look import recognise, serving
from lodger.engines import Engine, engine_of
from lodger.engines.client import Client
from lodger.engines.log import LogLines
from lodger.errors import Refused, StateFailed, UsageError
from lodger.host import facts, paths
from lodger.host.command import Command, Transport, quote, run
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host, Pool
from lodger.release import api_keys
from lodger.release.render import router_beside
from lodger.release.service import Release
from lodger.terminal import Terminal

Say = Callable[[str], None]

_LIFE = 300  # seconds after which the second router ends, even if this process died
_START = 90.0  # seconds until it knows every worker; 12 to 16 were seen
_PORTS = range(29100, 29200)  # below the kernel's range for outgoing connections
_UNIT = "lodger-router-probe.service"
_LOG_LINES = 20000


@dataclass(frozen=True)
class Affinity:
    """What the probe found at the router of one host; no trials in a dry run."""

    host: str
    pool: str
    workers: int
    trials: tuple[trials.Trial, ...]
    seconds: float

    def __str__(self) -> str:
        """Return the tables, and a line for each repeat that went to another worker."""
        if not self.trials:
            return f"{self.host}: would send prefixes through the router of pool {self.pool} and through a second one beside it"
        return "\n".join([f"pool {self.pool}, router on {self.host}", trials.table(self.trials), *self.faults()])

    def faults(self) -> list[str]:
        """Return what is wrong with the deployed router, a sentence each."""
        if not self.trials:
            return []
        deployed = self.trials[0]
        alone = len(deployed.workers) == 1 < self.workers
        return [*deployed.strays(), *["all prefixes went to one worker, so nothing is known about the other workers"] * alone]

    def check(self) -> None:
        """Raise StateFailed when a repeat did not return to its worker."""
        if faults := self.faults():
            raise StateFailed(
                f"{len(faults)} of {len(self.trials[0].pairs)} prefixes did not return to the worker that has them cached",
                cause=faults[0],
                hint="load of other users moves prompts too: run this again when the pool is quiet; then check pools.*.routing",
                host=self.host,
            )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of one router."""
        return {
            "host": self.host,
            "task": "affinity",
            "outcome": "failed" if self.faults() else "satisfied",
            "changed": [],
            "states": [],
            "seconds": round(self.seconds, 2),
            "pool": self.pool,
            "policies": [trials.as_json(trial) for trial in self.trials],
        }


def affinity_of(fleet: Fleet, host: Host, prefixes: int, *, dry_run: bool) -> Affinity:
    """Measure with ``prefixes`` prefixes (0: three for each worker) at the router of ``host``."""
    start = time.monotonic()
    if host.router is None:
        raise UsageError("this host has no router", hint="--host with the name of a host that has a router", host=host.name)
    if prefixes < 0:
        raise UsageError(f"{prefixes} prefixes cannot be sent", hint="--prefixes 9, or leave it out", host=host.name)
    pool, say = fleet.pools[host.router.pool], partial(Terminal().note, host.name)
    workers, trials = (0, ()) if dry_run else _trials(fleet, host, pool, prefixes, say)
    return Affinity(host.name, pool.name, workers, trials, time.monotonic() - start)


def _trials(fleet: Fleet, host: Host, pool: Pool, prefixes: int, say: Say) -> tuple[int, tuple[trials.Trial, ...]]:
    """Send prefixes twice through the router of ``host``, then others through a second router with ``round_robin``.

    Also return how many workers it has: one may be paused. Raises StateFailed when the router is not running, does not answer
    or has no worker, and when the second one does not start.
    """
    workers = [(other, worker.name) for other, worker in fleet.pool_workers(pool.name)]
    names = {host.name: host} | {other.name: other for other, _ in workers}
    with ExitStack() as stack:
        connections = {name: stack.enter_context(Ssh(one)) for name, one in names.items()}
        for name, connection in connections.items():
            recognise(connection, names[name])
        router, engine = connections[host.name], engine_of(fleet, pool.name)

        own = serving(router, host, "router")
        with router.forward(*own) as local:
            size = engine.pool.healthy(_client(fleet, pool.name, local))
        if not size:
            raise StateFailed("the router has no healthy worker", hint=f"./ops verify --host {host.name}", host=host.name)
        count = prefixes or 3 * size

        def trial(policy: str, address: str, port: int) -> trials.Trial:
            say(f"sending {count} prefixes twice, {size} at a time, through {policy}")
            texts = trials.prefixes(count, pool.context_length, uuid.uuid4().hex)
            return _trial(fleet, pool, policy, (router, address, port), connections, workers, texts, size)

        deployed = trial(pool.routing.policy, *own)
        with _beside(router, fleet, host, size, say) as (address, port):
            return size, (deployed, trial("round_robin", address, port))


def _trial(
    fleet: Fleet,
    pool: Pool,
    policy: str,
    router: tuple[Transport, str, int],
    connections: Mapping[str, Transport],
    workers: list[tuple[Host, str]],
    texts: list[str],
    size: int,
) -> trials.Trial:
    began = {name: connection.run(run("date", "+%s.%N")).check(name).stdout.strip() for name, connection in connections.items()}
    connection, address, port = router
    with connection.forward(address, port) as local:
        client = _client(fleet, pool.name, local)
        sends = trials.send(client, fleet.models[pool.model].served_name or pool.model, texts, size)
    time.sleep(0.5)  # an engine logs a request just after its client got the last token
    lines = engine_of(fleet, pool.name).log
    logs = {
        f"{host.name}/{worker}": lines.read_requests(
            connections[host.name].run(_log(f"lodger-worker-{worker}", began[host.name], lines)).check(host.name).stdout
        )
        for host, worker in workers
    }
    return trials.Trial(policy, trials.attribute(sends, logs))


def _client(fleet: Fleet, pool: str, port: int) -> Client:
    key = api_keys.of(fleet, pool)
    return Client(f"http://127.0.0.1:{port}", key.secret if key is not None else None)


def _log(container: str, since: str, lines: LogLines) -> Command:
    """Return the command that prints the log lines of a container that name the requests it served."""
    script = f"{quote(['docker', 'logs', '--since', since, container])} 2>&1"
    return Command(f"{script} | grep -E {quote([lines.requests])} | tail -n {_LOG_LINES}", why="read the worker's log")


@contextmanager
def _beside(connection: Ssh, fleet: Fleet, host: Host, workers: int, say: Say) -> Iterator[tuple[str, int]]:
    """Run a second router with ``round_robin``; yield its address and port once it knows every worker.

    It is a transient unit with a time limit, so it ends even when this process dies; nothing of it is left.
    """
    listening = facts.parse(connection.run(facts.command([facts.PORTS])).check(host.name).stdout, host.name)[facts.PORTS]
    port, metrics_port = free_ports({one.port for one in listening})
    beside = router_beside(fleet, host, "round_robin", port, metrics_port)
    (service,) = beside.services
    say(f"starting a second router with round_robin on port {port}, until this measurement ends")
    connection.run(_start(beside)).check(host.name)
    try:
        with connection.forward("127.0.0.1", port) as local:
            _wait(engine_of(fleet, service.pool), _client(fleet, service.pool, local), workers, host.name)
        yield "127.0.0.1", port
    finally:
        connection.run(run("systemctl", "stop", _UNIT, why="remove the second router", timeout=120.0, ok=(0, 5)))


def free_ports(taken: set[int]) -> tuple[int, int]:
    """Return two ports that nobody listens on; raise Refused when there are none."""
    free = [port for port in _PORTS if port not in taken]
    if len(free) < 2:
        raise Refused(
            f"there are no two free ports between {_PORTS.start} and {_PORTS.stop - 1}",
            hint="on the host, `ss -tlnp` shows who uses them",
        )
    return free[0], free[1]


def _start(beside: Release) -> Command:
    (service,) = beside.services
    file = f"{paths.VAR}/{service.name}.yml"
    compose = ["docker", "compose", "-p", service.container, "-f", file]
    down = quote([*compose, "down", "--timeout", "5"])
    unit = [
        *("systemd-run", "--quiet", "--collect", f"--unit={_UNIT}", f"--property=RuntimeMaxSec={_LIFE}"),
        *("--property=TimeoutStopSec=60", f"--property=ExecStopPost=/bin/sh -c '{down}; rm -f {file}'", "--"),
        *(*compose, "up", "--exit-code-from", "router", "--no-color"),
    ]
    (content,) = (one.content for one in beside.files if one.path.endswith("compose.yml"))
    busy = f"if systemctl -q is-active {_UNIT}; then echo 'another probe is running' >&2; exit 1; fi"
    script = f"{busy}\nmkdir -p {paths.VAR} && cat > {file} && {quote(unit)}"
    return Command(script, why="start a second router", stdin=content.encode())


def _wait(engine: Engine, client: Client, workers: int, host: str) -> None:
    end = time.monotonic() + _START
    while (healthy := engine.pool.healthy(client)) < workers:
        if time.monotonic() > end:
            raise StateFailed(
                f"the second router knows {healthy} of {workers} workers after {_START:.0f} s",
                hint=f"on the host: journalctl -u {_UNIT}; for the workers: ./ops verify --host {host}",
                host=host,
            )
        time.sleep(0.5)
