"""Lodger is a guest: what is its own is named and labelled so, stands in its own places, and gives no secret away."""

from __future__ import annotations

import json
import re

from testinfra.host import Host

import lodger.inventory

PAUSED = "ls /var/lib/lodger/paused 2>/dev/null || true"
RETURNING = "ls /var/lib/lodger/returns 2>/dev/null || true"
OURS = "/opt/lodger /etc/lodger /var/lib/lodger"


def declared(inventory_host: lodger.inventory.Host) -> set[str]:
    names = {f"lodger-worker-{name}" for name in inventory_host.workers}
    return names | ({"lodger-router"} if inventory_host.router else set())


def test_units_of_that_name_are_the_declared_ones(host: Host, inventory_host: lodger.inventory.Host) -> None:
    seen = host.check_output(
        "{ ls /etc/systemd/system; systemctl list-units --all --plain --no-legend 'lodger-*.service'; } | "
        "grep -o '^lodger-[^ ]*[.]service' | sort -u || true"
    ).split()
    # Work that was begun and goes on by itself: weights that are fetched or shared, a router under test.
    at_work = {name for name in seen if re.fullmatch(r"lodger-((fetch|share)-.+|router-probe)[.]service", name)}
    # A worker that is paused until some time is brought back by a unit of its own, which ends when its routers have it again.
    returning = {f"{name.replace('lodger-', 'lodger-resume-', 1)}.service" for name in host.check_output(RETURNING).split()}
    assert set(seen) - at_work - returning == {f"{name}.service" for name in declared(inventory_host)}


def test_messages_of_the_day_are_those_of_paused_workers(host: Host) -> None:
    told = host.check_output("ls /etc/motd.d 2>/dev/null | grep ^lodger- || true").split()
    assert told == host.check_output(PAUSED).split()


def test_containers_of_that_name_are_labelled_and_the_declared_ones(host: Host, inventory_host: lodger.inventory.Host) -> None:
    listed = host.check_output("docker ps -a --format %s", '{{.Names}}|{{.Label "io.lodger.host"}}').splitlines()
    owners = dict(line.split("|") for line in listed)
    ours = {name: owner for name, owner in owners.items() if name.startswith("lodger-") or owner}
    assert ours == dict.fromkeys(declared(inventory_host), inventory_host.name)


def test_nothing_of_it_lies_about_elsewhere(host: Host) -> None:
    strays = host.check_output(
        "find /etc /opt /usr/local /var/lib /var/log /tmp /root -xdev -maxdepth 4 "
        "\\( -path /opt/lodger -o -path /etc/lodger -o -path /var/lib/lodger -o -path /var/lib/docker "
        "-o -path '/etc/systemd/system/lodger-*' -o -path '/etc/systemd/system/*.wants/lodger-*' "
        "-o -path '/etc/motd.d/lodger-*' -o -path '/var/lib/containerd' \\) -prune -o -name 'lodger-*' -print"
    )
    assert strays.splitlines() == []


def test_no_file_gives_a_secret_away(host: Host) -> None:
    told = host.check_output(
        f"for path in {OURS}; do if [ -e $path ]; then "
        "find $path -type f -perm -o+r \\( -name '*key*' -o -name '*secret*' -o -name '*.env' \\) -print; "
        # The starter says where in a module's memory a key goes; it holds none.
        "find $path -type f -perm -o+r ! -name starter.py -exec grep -lE -e '(API_KEY|TOKEN|PASSWORD) *[=:]' -e '--(admin-)?api-key' {} +; "
        "fi; done; true"
    )
    assert told.splitlines() == []


def test_no_command_line_gives_a_secret_away(host: Host) -> None:
    found = host.check_output("docker ps -q --filter label=io.lodger.host | xargs -r docker inspect") or "[]"
    words = [word for container in json.loads(found) for word in container["Args"]]
    # Everybody on the machine can read them with ps.
    assert [word.split("=")[0] for word in words if word.split("=")[0] in ("--api-key", "--admin-api-key")] == []
