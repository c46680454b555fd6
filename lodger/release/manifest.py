"""The manifest of a release, and the units that it puts on a host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lodger.host import facts, paths
from lodger.host.facts.deployed import Deployed
from lodger.release.service import Service


def manifest_text(release: str, host: str, revision: str, services: Sequence[Service], smoke: Mapping[str, Any]) -> str:
    """Return the manifest of a release: what it runs, from which git revision, and what its smoke checks expect."""
    data = {
        "version": facts.MANIFEST,
        "release": release,
        "host": host,
        "revision": revision,
        "services": [service.manifest() for service in services],
        "smoke": dict(smoke),
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def services(deployed: Deployed, release: str) -> dict[str, Service]:
    """Return the services of a stored release by name, {} for no release; raise Refused when its manifest names none."""
    if not release:
        return {}
    try:
        return {item["name"]: Service.load(item) for item in deployed.manifest(release)["services"]}
    except (KeyError, TypeError) as error:
        raise deployed.no_manifest(release, f"its services cannot be read ({error})") from error


def unit_files(deployed: Deployed, release: str, unit: str) -> tuple[str | None, str | None]:
    """Return the unit's text as ``release`` has it and as it is installed, None where there is none."""
    stored = deployed.files.get(f"{paths.RELEASES}/{release}/units/{unit}")
    installed = deployed.files.get(f"{paths.UNITS}/{unit}")
    return (stored.content if stored else None, installed.content if installed else None)


def drop_ins(deployed: Deployed, unit: str) -> dict[str, str]:
    """Return the drop-ins of a unit of ours (`systemctl edit`), path -> content."""
    return {path: file.content for path, file in deployed.files.items() if path.startswith(f"{paths.UNITS}/{unit}.d/")}


def installed(deployed: Deployed) -> dict[str, Service]:
    """Return the services that have a link or a unit on the host, as their releases define them."""
    found: dict[str, Service] = {}
    for name, release in deployed.links.items():
        if release in deployed.stored:
            service = services(deployed, release).get(name)
            found |= {name: service} if service else {}
    return {**services(deployed, deployed.current), **found}


def smoke_of(deployed: Deployed, release: str) -> dict[str, Any]:
    """Return what a stored release expects of smoke, by service; {} for no release."""
    found: dict[str, Any] = deployed.manifest(release).get("smoke", {}) if release else {}
    return found
