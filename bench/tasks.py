"""The verbs of the benchmarks."""

from __future__ import annotations

from invoke.collection import Collection

from lodger.tasks.options import HOST, HOSTS_DIR, Asked, verb

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415


@verb(HOST, HOSTS_DIR, help={"times": "how often each side is run"})
def deploy(asked: Asked, times: int = 5) -> None:
    """Print a deploy with nothing to do beside pyinfra, Ansible, Mitogen, ssh and bare paramiko, and what each looks at."""
    from bench import deploy as benchmark

    for one in asked.hosts:
        print(benchmark.run(asked.fleet, one, times))


@verb(help={"host": "NAME of a twin", "rate": "of the link, in MB/s"})
def fetch(asked: Asked, host: str = "node1", rate: int = 50) -> None:
    """Print a fetch beside curl, aria2c and the hubs' own clients, on a link of the lab; takes about ten minutes."""
    from bench import fetch as benchmark
    from lab.lab import Lab

    del asked
    lab = Lab()
    lab.up()
    print(benchmark.run_all(lab, host, float(rate)))


ns = Collection("bench", deploy, fetch)
