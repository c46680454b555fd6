"""What the tests of release share."""

from typing import Any

import yaml

from lodger.checkout import CODE
from lodger.inventory import Fleet
from lodger.release.service import File, Release, Service

ROOT = CODE


def changed(fleet: Fleet, host: str = "node1", pool: dict[str, Any] | None = None, **worker: Any) -> Fleet:
    """A fleet with other settings in its pool, or for worker a of a host."""
    pools = {"qwen38": fleet.pools["qwen38"].model_copy(update=pool or {})}
    machine = fleet.hosts[host]
    workers = {**machine.workers, "a": machine.workers["a"].model_copy(update=worker)}
    hosts = {**fleet.hosts, host: machine.model_copy(update={"workers": workers})}
    return fleet.model_copy(update={"pools": pools, "hosts": hosts})


def service(release: Release, name: str) -> Service:
    (found,) = (s for s in release.services if s.name == name)
    return found


def content(files: tuple[File, ...], path: str) -> str:
    (found,) = (f.content for f in files if f.path == path)
    return found


def compose(release: Release, name: str) -> dict[str, Any]:
    text = content(release.files, f"{name}/compose.yml").replace("$$", "$")
    data: dict[str, Any] = yaml.safe_load(text)["services"]["router" if name == "router" else "engine"]
    return data


def values(argv: list[str]) -> dict[str, list[str]]:
    """Options with the words that follow each."""
    found: dict[str, list[str]] = {}
    for item in argv:
        if item.startswith("--"):
            assert item not in found, f"{item} is given twice"
            found[item] = []
        else:
            list(found.values())[-1].append(item)
    return found
