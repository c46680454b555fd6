"""Hosts that the tests of plans share."""

from __future__ import annotations

from lodger.checkout import CODE
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import Deployed, HostFile
from lodger.release.manifest import manifest_text
from lodger.release.service import Release
from tests.unit.readings import base, deployed, readings

ROOT = CODE


def on_host(release: Release, revision: str = "r1") -> Deployed:
    """Return what a host looks like after ``release`` was deployed."""
    root = f"/opt/lodger/releases/{release.id}"
    text = manifest_text(release.id, release.host, revision, list(release.by_name.values()), {})
    files = {f"{root}/{file.path}": HostFile(file.content, file.mode, "root") for file in release.files}
    files[f"{root}/manifest.json"] = HostFile(text, 0o644, "root")
    for file in release.files:
        if file.path.startswith("units/"):
            files[f"/etc/systemd/system/{file.path.removeprefix('units/')}"] = HostFile(file.content, 0o644, "root")
    return deployed((release.id,), links={service.name: release.id for service in release.services}, files=files)


def holding(ours: Deployed) -> Facts:
    return readings(base(deployed=ours))
