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


# Docker's client takes 20 to 60 ms to start, so dockerd is asked itself, and a plugin run without it; but only where the client
# would come to the same dockerd and plugin: no other context, no further folders. Podman's socket is a link.
_DIRECT = r"""direct() {
    file=${DOCKER_CONFIG:-$HOME/.docker}/config.json
    [ -z "$DOCKER_HOST$DOCKER_CONTEXT" ] || return
    [ ! -e "$file" ] || ! grep -qE '"(currentContext|cliPluginsExtraDirs)"' "$file"
}
ask() {
    sock=/var/run/docker.sock
    [ -S $sock ] && [ ! -L $sock ] && direct && curl -qs --noproxy '*' --unix-socket $sock "$@"
}
"""

DOCKER = Fact(
    "docker",
    f"""{_DIRECT}command -v docker >/dev/null && echo client=yes || echo client=no
said=$(ask -f http://docker/info | sed -n 'h; s/.*"ServerVersion":"\\([^"\\]*\\)".*/server=\\1/p
g; s/.*"DockerRootDir":"\\([^"\\]*\\)".*/root=\\1/p')
case $said in
    server=?*root=?*) echo "$said" ;;
    *) docker info --format 'server={{{{.ServerVersion}}}}
root={{{{.DockerRootDir}}}}' 2>/dev/null || printf 'server=\\nroot=\\n' ;;
esac
compose() {{
    command -v docker >/dev/null && direct || return
    for at in "${{DOCKER_CONFIG:-$HOME/.docker}}" /usr/local/lib/docker /usr/local/libexec/docker /usr/lib/docker \\
        /usr/libexec/docker; do
        [ ! -x "$at/cli-plugins/docker-compose" ] || {{ "$at/cli-plugins/docker-compose" version --short; return; }}
    done
}}
said=$(compose 2>/dev/null)
echo "compose=${{said:-$(docker compose version --short 2>/dev/null)}}"
hook=no
pid=$(systemctl show -p MainPID --value docker.service 2>/dev/null)
[ "${{pid:-0}}" = 0 ] || path=$(tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^PATH=//p')
for name in nvidia-container-runtime-hook nvidia-container-toolkit; do
    PATH=${{path:-$PATH}} command -v $name >/dev/null && hook=yes
done
echo hook=$hook""",
    _docker,
    takes=40,
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
# A container may vanish between the two questions; what is left is still the truth of the moment.
CONTAINERS = Fact(
    "containers",
    f"""command -v docker >/dev/null || exit 0
{_DIRECT}said=$(ask -f 'http://docker/containers/json?all=1')
[ "$said" != '[]' ] || exit 0
ids=$(printf '%s\\n' "$said" | grep -oE '"Id":"[0-9a-f]{{64}}"' | cut -d '"' -f 4)
[ -n "$ids" ] || ids=$(docker ps -aq --no-trunc) || exit 1
[ -z "$ids" ] || docker container inspect --format {quote([_INSPECT])} $ids 2>/dev/null || true""",
    _containers,
    takes=40,
)


def images_fact(references: Sequence[str]) -> Fact[dict[str, bool]]:
    """Return the fact which of ``references`` (``repository@sha256:...``) the host has."""
    wanted = tuple(sorted(set(references)))
    lines = [
        f"""case $(ask -o /dev/null -w '%{{http_code}}' {quote([f"http://docker/images/{ref}/json"])}) in
    200) true ;;
    404) false ;;
    *) docker image inspect {quote([ref])} >/dev/null 2>&1 ;;
esac && echo yes {quote([ref])} || echo no {quote([ref])}"""
        for ref in wanted
    ]

    def parse_images(text: str) -> dict[str, bool]:
        have = {line.removeprefix("yes ") for line in text.splitlines() if line.startswith("yes ")}
        return {ref: ref in have for ref in wanted}

    return Fact(f"images {' '.join(wanted)}", _DIRECT + "\n".join(lines) if lines else "true", parse_images, takes=10)
