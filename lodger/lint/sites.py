"""Rules about hosts, routers, neighbours, and the documents that releases and runbooks come from."""

# ruff: noqa: D401  a rule's first line is a sentence that says what is wrong

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from lodger.lint.location import Location
from lodger.lint.rule import Hit, Severity, rule
from lodger.lint.view import View, lines

_EPHEMERAL = range(32768, 61000)  # Linux gives these to outgoing connections
_ROUTER = "router: {pool: p, port: 30002, prometheus_port: 29000, listen: 10.0.0.1}"


@rule(
    "L042",
    Severity.ERROR,
    bad=["worker_template: '    restart: unless-stopped'", "worker_template: '    restart: always'"],
    good=["worker_template: '    restart: \"no\"'"],
)
def restart_policy_that_loops(view: View) -> Iterator[Hit]:
    """Docker restarts a container that cannot start, for ever and out of sight."""
    for place, found in lines(view.templates, r'^\s*restart:\s*"?(always|unless-stopped|on-failure)'):
        yield Hit(
            place,
            f"`restart: {found[1]}` starts what fails for ever and shows it as Restarting, never as failed; 18 times were seen",
            'restart: "no", and systemd with a bound',
        )


@rule(
    "L043",
    Severity.WARNING,
    bad=["workers: {a: {port: 40000}}", "router: {pool: p, port: 30002, prometheus_port: 50000, listen: 10.0.0.1}"],
    good=["workers: {a: {port: 30007}}", _ROUTER],
)
def port_of_outgoing_connections(view: View) -> Iterator[Hit]:
    """A port lies where the kernel takes ports for outgoing connections."""
    for host in view.hosts:
        for loc, port in _ports(host.name, view):
            if port in _EPHEMERAL:
                yield Hit(
                    Location(loc, host.name),
                    f"port {port} is in the range of outgoing connections ({_EPHEMERAL.start} to {_EPHEMERAL.stop - 1}): one "
                    "day it is taken when the service starts",
                    "a port below 32768 that nobody has",
                )


@rule(
    "L044",
    Severity.ERROR,
    bad=["workers: {a: {port: 22}}", "ssh: {port: 2222}\nworkers: {a: {port: 2222}}"],
    good=["ssh: {port: 2222}"],
)
def port_of_ssh(view: View) -> Iterator[Hit]:
    """A port is that of the host's own SSH server."""
    for host in view.hosts:
        for loc, port in _ports(host.name, view):
            if port in {22, host.ssh.port}:
                yield Hit(Location(loc, host.name), f"port {port} is that of the host's SSH server", "a port that nobody has")


def _ports(host: str, view: View) -> Iterator[tuple[tuple[str, ...], int]]:
    there = view.fleet.hosts[host]
    yield from ((("workers", name, "port"), worker.port) for name, worker in there.workers.items())
    if there.router:
        yield ("router", "port"), there.router.port
        yield ("router", "prometheus_port"), there.router.prometheus_port


@rule(
    "L045",
    Severity.WARNING,
    bad=[
        "workers: {a: {listen: 0.0.0.0}}",
        "workers: {a: {listen: 8.8.4.4}}",
        "router: {pool: p, port: 30002, prometheus_port: 29000, listen: 0.0.0.0}",
        "router: {pool: p, port: 30002, prometheus_port: 29000, listen: 10.0.0.1, prometheus_listen: 0.0.0.0}",
        "pools: {p: {api_key_file: p.key}}\nrouter: {pool: p, port: 30002, prometheus_port: 29000, prometheus_listen: 0.0.0.0}",
    ],
    good=[
        "workers: {a: {listen: 127.0.0.1}}",
        "workers: {a: {listen: 192.168.7.4}}",
        "pools: {p: {api_key_file: p.key}}\nworkers: {a: {listen: 0.0.0.0}}",
        _ROUTER,
    ],
)
def open_to_everybody(view: View) -> Iterator[Hit]:
    """A port is open on every address of the host, and nothing behind it asks for a key."""
    keyed = {name for name, pool in view.fleet.pools.items() if pool.api_key_file is not None}
    for host in view.hosts:
        doors: list[tuple[tuple[str, ...], str, str]] = [
            (("workers", name, "listen"), worker.listen, "its control endpoints")
            for name, worker in host.workers.items()
            if worker.pool not in keyed
        ]
        if host.router:
            if host.router.pool not in keyed:
                doors.append((("router", "listen"), host.router.listen, "its list of workers"))
            doors.append((("router", "prometheus_listen"), host.router.prometheus_listen, "the names of all workers"))
        for loc, listen, what in doors:
            address = ipaddress.ip_address(listen)
            if address.is_unspecified or address.is_global:
                yield Hit(
                    Location(loc, host.name),
                    f"{listen} lets everybody who reaches {host.name} use the model and {what}: no key is asked for",
                    f"{loc[-1]}: the host's address on the private network; or a key, the pool's `api_key_file`",
                )


@rule(
    "L046",
    Severity.WARNING,
    bad=["neighbours: {painter: {kind: program, policy: pause}}"],
    good=[
        "neighbours: {painter: {kind: program, policy: pause, gpu_memory_mib: 512}}",
        "neighbours: {old.service: {kind: unit, policy: replace}}",
    ],
)
def neighbour_without_memory(view: View) -> Iterator[Hit]:
    """A neighbour that stays on the GPUs was promised no memory there."""
    for host in view.hosts:
        for name, neighbour in host.neighbours.items():
            if neighbour.policy == "pause" and not neighbour.gpu_memory_mib:
                yield Hit(
                    Location(("neighbours", name), host.name),
                    f"{name} stays on the GPUs beside our workers with no memory promised: what it really holds is missing "
                    "from their pools, and a deploy waits for it until it fails",
                    "gpu_memory_mib: what nvidia-smi shows for it, in MiB a GPU",
                )


@rule(
    "L047",
    Severity.ERROR,
    bad=["runbook: 'run: apt-get install -y nvidia-driver-580'", "runbook: '    apt install cuda-drivers-580 --yes'"],
    good=[
        "runbook: 'run: apt-get install -y nvidia-dkms-580 libnvidia-compute-580'",
        "runbook: 'Never the metapackage nvidia-driver-580.'",
    ],
)
def driver_by_its_metapackage(view: View) -> Iterator[Hit]:
    """A runbook installs the driver by its metapackage, whose dependencies a server without a screen cannot meet."""
    for place, found in lines(
        view.runbooks, r"\bapt(?:-get)?\b.*\binstall\b.*?\b((?:nvidia-driver|cuda-drivers)(?:-\d+)?(?:-server)?)\b"
    ):
        branch = (re.findall(r"\d+", found[1]) or ["NNN"])[0]
        yield Hit(
            place,
            f"the metapackage {found[1]} pulls in GL and X11 and ends in broken packages",
            f"name the compute packages: nvidia-dkms-{branch} nvidia-kernel-source-{branch} libnvidia-compute-{branch} "
            f"nvidia-utils-{branch}",
        )


@rule(
    "L048",
    Severity.ERROR,
    bad=["runbook: 'run: rmmod nvidia_uvm nvidia'", "runbook: 'run: modprobe -r nvidia'"],
    good=[
        'runbook: "state: gpus_released\\nrun: rmmod nvidia_uvm nvidia"',
        "runbook: 'run: rmmod some_other_module'",
    ],
)
def module_unloaded_while_in_use(view: View) -> Iterator[Hit]:
    """A runbook unloads the driver's module with nobody having released the GPUs before."""
    for place, found in lines(view.runbooks, r"\b(rmmod|modprobe\s+-r)\b[^\n]*\bnvidia"):
        path, number = place.document or (None, 0)
        before = "\n".join(view.runbooks[path].splitlines()[: number - 1]) if path else ""
        if not re.search(r"state:\s*\w*(release|pause|stop)\w*|supervisorctl stop|systemctl stop|docker stop", before):
            yield Hit(
                place,
                f"`{found[1]}` fails while any process has /dev/nvidia* open, and leaves the libraries newer than the module",
                "before it, a state that releases the GPUs by stopping their neighbours through their owners",
            )
