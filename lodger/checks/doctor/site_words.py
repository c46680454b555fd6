"""The words that name a site's machines and people, for a report that leaves the site."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

from lodger.host import facts
from lodger.host.facts import health
from lodger.host.facts.base import Facts, Unreadable
from lodger.inventory import Fleet, Host

# ---------------------------------------------------------------- what stays at the site

_NOBODY = {"root", "nobody", "daemon", "www-data", "systemd-network", "systemd-resolve", "systemd-timesync", "messagebus"}


def private(fleet: Fleet, host: Host, read: Facts) -> dict[str, list[str]]:
    """Return the words that name the site's machines and people, by kind, for a document that leaves it."""
    hosts = [name for one in fleet.hosts.values() for name in (one.name, one.address, one.service_address) if name]
    hosts += [image.repository.partition("/")[0] for image in fleet.images.values()]
    hosts += [urlsplit(url).hostname or "" for url in fleet.weights.endpoints.values()]
    users = [one.ssh.user for one in fleet.hosts.values() if one.ssh.user]
    users += [name.partition(":")[0] for name, one in host.neighbours.items() if one.kind == "user-unit"]
    ids = [one.machine_id for one in fleet.hosts.values() if one.machine_id]
    with contextlib.suppress(Unreadable):
        machine = read[facts.MACHINE]
        hosts.append(machine.hostname)
        ids += [machine.machine_id, machine.boot_id]
    with contextlib.suppress(Unreadable):
        users += [process.user for process in read[facts.PROCESSES].values()]
    with contextlib.suppress(Unreadable):
        sources = [mount.source for mount in read[health.NETWORK_MOUNTS].values()]
        hosts += [server for source in sources if (server := source.strip("/").partition(":")[0].partition("/")[0])]
    return {"host": hosts, "user": [user for user in users if user not in _NOBODY], "id": ids}
