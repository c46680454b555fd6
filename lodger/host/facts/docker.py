"""Docker and its containers and images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lodger.host.command import quote
from lodger.host.facts.base import Fact


@dataclass(frozen=True)
class Docker:
    """The container engine: versions ("" when missing), whether GPUs can be given to containers, and its data folder."""

    client: bool
    server: str
    compose: str
    gpu_hook: bool
    root: str


def _docker(text: str) -> Docker:
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return Docker(
        values["client"] == "yes",
        values["server"],
        values["compose"],
        values["hook"] == "yes",
        values["root"] or "/var/lib/docker",
    )


DOCKER = Fact(
    "docker",
    """command -v docker >/dev/null && echo client=yes || echo client=no
docker info --format 'server={{.ServerVersion}}
root={{.DockerRootDir}}' 2>/dev/null || printf 'server=\\nroot=\\n'
echo "compose=$(docker compose version --short 2>/dev/null)"
hook=no
pid=$(systemctl show -p MainPID --value docker.service 2>/dev/null)
[ "${pid:-0}" = 0 ] || path=$(tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^PATH=//p')
for name in nvidia-container-runtime-hook nvidia-container-toolkit; do
    PATH=${path:-$PATH} command -v $name >/dev/null && hook=yes
done
echo hook=$hook""",
    _docker,
)


HOST_LABEL = "io.lodger.host"
"""Label of our containers: the host as our inventory calls it."""


@dataclass(frozen=True)
class Container:
    """A container, running or not. ``started`` is Docker's timestamp, ``address`` its own address on its network."""

    id: str
    name: str
    image: str
    status: str
    restart_policy: str
    restart_count: int
    started: str
    pid: int
    labels: Mapping[str, str]
    address: str
    published: tuple[int, ...]
    removed_when_stopped: bool = False

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.status == "running"


def _restart_policy(policy: Mapping[str, Any]) -> str:
    """Return a policy as `docker update --restart` takes it: ``on-failure:3`` has its number."""
    name, most = policy["Name"] or "no", policy.get("MaximumRetryCount", 0)
    return f"{name}:{most}" if most else name


def _containers(text: str) -> dict[str, Container]:
    found: dict[str, Container] = {}
    for line in text.split("\n"):  # JSON leaves in place some characters at which splitlines() splits
        if not line.startswith("["):
            continue
        # A ledger may come from a Lodger that did not ask for the last one yet.
        ident, name, image, status, policy, count, started, pid, labels, networks, mode, ports, *removed = json.loads(line)
        address = next((net["IPAddress"] for net in (networks or {}).values() if net.get("IPAddress")), "")
        found[name.lstrip("/")] = Container(
            id=ident,
            name=name.lstrip("/"),
            image=image,
            status=status,
            restart_policy=_restart_policy(policy),
            restart_count=int(count),
            started=started,
            pid=int(pid),
            labels=labels or {},
            address="127.0.0.1" if mode == "host" else address,
            published=tuple(sorted({int(one["HostPort"]) for bound in (ports or {}).values() for one in bound or ()})),
            removed_when_stopped=removed == [True],
        )
    return found


_INSPECTED = (
    *(
        "Id",
        "Name",
        "Config.Image",
        "State.Status",
        "HostConfig.RestartPolicy",
        "RestartCount",
        "State.StartedAt",
        "State.Pid",
    ),
    *("Config.Labels", "NetworkSettings.Networks", "HostConfig.NetworkMode", "NetworkSettings.Ports"),
    "HostConfig.AutoRemove",
)
_INSPECT = "[" + ",".join(f"{{{{json .{name}}}}}" for name in _INSPECTED) + "]"
# A container may vanish between the two commands; what is left is still the truth of the moment.
CONTAINERS = Fact(
    "containers",
    f"""command -v docker >/dev/null || exit 0
ids=$(docker ps -aq --no-trunc) || exit 1
[ -z "$ids" ] || docker inspect --format {quote([_INSPECT])} $ids 2>/dev/null || true""",
    _containers,
)


def images_fact(references: Sequence[str]) -> Fact[dict[str, bool]]:
    """Return the fact which of ``references`` (``repository@sha256:...``) the host has."""
    wanted = tuple(sorted(set(references)))
    lines = [
        f"docker image inspect {quote([ref])} >/dev/null 2>&1 && echo yes {quote([ref])} || echo no {quote([ref])}"
        for ref in wanted
    ]

    def parse_images(text: str) -> dict[str, bool]:
        have = {line.removeprefix("yes ") for line in text.splitlines() if line.startswith("yes ")}
        return {ref: ref in have for ref in wanted}

    return Fact(f"images {' '.join(wanted)}", "\n".join(lines) or "true", parse_images)
