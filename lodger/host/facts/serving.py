"""How a service of ours stands: its container and its readiness."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lodger.host.command import quote
from lodger.host.facts.base import Fact
from lodger.host.facts.docker import HOST_LABEL


@dataclass(frozen=True)
class Serving:
    """How one service of ours stands: its container, its health at its own address (0: no answer), last log lines."""

    container: str
    address: str
    port: int
    config: str
    health: int
    log: str


def serving_fact(container: str, unit: str, host: str) -> Fact[Serving]:
    """Return the readiness of the service in ``container``: found by our labels, asked at its own address and port.

    The container's label names the path that is asked: one that answers 200 only when the engine can serve, since an open port
    or a log line prove nothing (recordings). An answer takes at least a second, and 20 s when the engine hangs. A router's is
    200 with no worker behind it: whom it sends requests to, its list tells.
    """
    names = (HOST_LABEL, *(f"io.lodger.{name}" for name in ("config", "port", "health")))
    labels = "|".join(f'{{{{index .Config.Labels "{name}"}}}}' for name in names)
    address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    form = "{{.Id}}|{{.State.Running}}|{{.HostConfig.NetworkMode}}|" + f"{address}|{labels}"
    snippet = f"""IFS='|'; set -- $(docker inspect --format {quote([form])} -- {quote([container])} 2>/dev/null); unset IFS
[ "$5" = {quote([host])} ] || set --
code=0
if [ "$2" = true ]; then
    address=$4; [ "$3" = host ] && address=127.0.0.1
    code=$(curl -s -o /dev/null -w '%{{http_code}}' --noproxy '*' --max-time 25 "http://$address:$7$8") || code=0
fi
printf 'container=%s\naddress=%s\nport=%s\nconfig=%s\nhealth=%s\n@log\n' "$1" "$address" "$7" "$6" "$code"
[ "$code" = 200 ] || journalctl -u {quote([unit])} -n 80 -o cat --no-pager 2>/dev/null || true"""

    def parse_serving(text: str) -> Serving:
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)  # Compose moves the cursor even where there is none
        head, _, log = text.partition("@log\n")
        values = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
        return Serving(
            values["container"],
            values["address"],
            int(values["port"] or 0),
            values["config"],
            int(values["health"]),
            log.strip(),
        )

    return Fact(f"serving {container}", snippet, parse_serving, takes=1000)
