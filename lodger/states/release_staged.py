"""The files of a release are on the host, complete and checked."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

from lodger.host import facts, paths
from lodger.host.command import Command, quote, run
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import Deployed
from lodger.release.service import File
from lodger.states.base import NoUndo, State
from lodger.states.registry import state
from lodger.states.target import Target

# Removes our folders that are empty; a missing one is not a failure.
REMOVE_EMPTY = f"rmdir --ignore-fail-on-non-empty {paths.RELEASES} {paths.SERVICES} {paths.ROOT} 2>/dev/null; true"


def archive(files: Iterable[File]) -> bytes:
    """Return ``files`` as a tar owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(files, key=lambda one: one.path):
            raw = file.content.encode()
            member = tarfile.TarInfo(file.path)
            member.size, member.mode = len(raw), file.mode
            tar.addfile(member, io.BytesIO(raw))
    return buffer.getvalue()


@state("release_staged")
class ReleaseStaged(State):
    """The release's folder has exactly its files, checked there by systemd and Compose."""

    def __init__(self, release: str, files: Iterable[File], manifest: str) -> None:
        """Take the release's id, its files, and its manifest."""
        self.name = "release_staged"
        self.release = release
        self._files = {file.path: file for file in (*files, File("manifest.json", manifest))}
        self._folder = f"{paths.RELEASES}/{release}"
        self.facts = (facts.DEPLOYED,)

    @classmethod
    def of(cls, target: Target, item: None) -> ReleaseStaged:
        """Return the state for the host."""
        del item
        return cls(target.release.id, target.release.files, target.release.manifest)

    def missing(self, read: Facts) -> str:
        """Return the first file that is missing, changed, or not of the release; the manifest's revision may be older."""
        there = stored(read[facts.DEPLOYED], self.release)
        for path, wanted in sorted(self._files.items()):
            found = there.get(path)
            if found is None:
                return f"{self._folder}/{path} is missing" if there else f"release {self.release} is not on the host"
            if path == "manifest.json":
                if not _same_services(found.content, wanted.content):
                    return f"{self._folder}/{path} was changed"
            elif (found.content, found.mode) != (wanted.content, wanted.mode) or found.owner != "root":
                return f"{self._folder}/{path} was changed on the host"
        extra = sorted(there.keys() - self._files.keys())
        return f"{self._folder}/{extra[0]} does not belong to the release" if extra else ""

    def act(self, read: Facts) -> list[Command]:
        """Return the commands that upload to a new folder, check it, and rename it."""
        del read
        new, old = f"{paths.RELEASES}/.{self.release}.new", f"{paths.RELEASES}/.{self.release}.old"
        units = [f"{new}/{path}" for path in sorted(self._files) if path.startswith("units/")]
        composes = [f"{new}/{path}" for path in sorted(self._files) if path.endswith("compose.yml")]
        # Older systemd has no --recursive-errors; it reports only on the named units, as wanted.
        only = "only=; systemd-analyze --help | grep -q recursive-errors && only=--recursive-errors=no"
        verify = f"{only}; systemd-analyze verify $only "
        return [
            Command(
                "rm -rf {0} && mkdir -p {0} && tar -x --no-same-owner -C {0} && sync -f {0}".format(quote([new])),
                why="upload the release",
                stdin=archive(self._files.values()),
            ),
            *([Command(verify + quote(units), why="check the units with systemd")] if units else []),
            *(run("docker", "compose", "-f", path, "config", "--quiet", why="check the Compose file") for path in composes),
            Command(
                f"rm -rf {quote([old])}; [ ! -e {quote([self._folder])} ] || mv -T {quote([self._folder, old])};"
                f" mv -T {quote([new, self._folder])} && rm -rf {quote([old])}",
                why="put the release in place",
            ),
        ]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the command that removes what this run uploaded, and folders that are then empty."""
        # A run that was cut off may have uploaded another release.
        staged = sorted({self.release, *now[facts.DEPLOYED].stored} - set(before[facts.DEPLOYED].stored))
        if not staged:
            return NoUndo("the release was on the host before; this run only repaired its files")
        folders = [
            folder for release in staged for folder in (f"{paths.RELEASES}/{release}", f"{paths.RELEASES}/.{release}.new")
        ]
        return [Command(f"rm -rf {quote(folders)}; {REMOVE_EMPTY}", why="remove the uploaded release")]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return why it is not undone: the uploaded release is still there."""
        left = sorted(set(now[facts.DEPLOYED].stored) - set(before[facts.DEPLOYED].stored))
        return f"{paths.RELEASES}/{left[0]} is still there" if left else ""


def stored(deployed: Deployed, release: str) -> dict[str, facts.HostFile]:
    """Return the files of a stored release by path relative to its folder."""
    prefix = f"{paths.RELEASES}/{release}/"
    return {path.removeprefix(prefix): file for path, file in deployed.files.items() if path.startswith(prefix)}


def _same_services(found: str, wanted: str) -> bool:
    try:
        one, other = json.loads(found), json.loads(wanted)
    except ValueError:
        return False
    same = isinstance(one, dict) and all(one.get(key) == other.get(key) for key in ("release", "host", "services"))
    return same and _declared(one) == _declared(other)


def _declared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what smoke expects by the inventory, without the floor of the KV pool, which follows what was measured."""
    smoke = manifest.get("smoke")
    return {name: {**expected, "min_kv_tokens": None} for name, expected in smoke.items()} if isinstance(smoke, dict) else {}
