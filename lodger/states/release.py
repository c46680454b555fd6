"""A release on the host: its files staged whole, recorded as current, and the old ones pruned."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lodger import facts, paths
from lodger.command import Command, quote, run
from lodger.errors import Refused
from lodger.facts import Deployed, Facts
from lodger.states.base import NoUndo, State
from lodger.states.service import Managed, services

# Folders of ours that hold nothing any more; a missing one is no failure.
REMOVE_EMPTY = f"rmdir --ignore-fail-on-non-empty {paths.RELEASES} {paths.SERVICES} {paths.ROOT} 2>/dev/null; true"
KEPT = 3  # releases kept on a host, the current one among them


@dataclass(frozen=True)
class Content:
    """A file of a release as it is to stand on the host."""

    text: str
    mode: int = 0o644


def manifest(release: str, host: str, revision: str, services: Sequence[Managed], smoke: Mapping[str, Any]) -> str:
    """Return the manifest of a release: what it runs, from which git revision, and what its smoke checks expect."""
    data = {
        "version": facts.MANIFEST,
        "release": release,
        "host": host,
        "revision": revision,
        "services": [asdict(service) for service in services],
        "smoke": dict(smoke),
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def archive(files: Mapping[str, Content]) -> bytes:
    """Return ``files`` (relative path -> content) as a tar owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in sorted(files.items()):
            raw = content.text.encode()
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(raw), content.mode
            tar.addfile(member, io.BytesIO(raw))
    return buffer.getvalue()


class ReleaseStaged(State):
    """The release's files are in its own folder, exactly these, checked there by systemd and Compose."""

    def __init__(self, release: str, files: Mapping[str, Content], manifest_text: str) -> None:
        """Take the release's id, its files by path relative to its folder, and its manifest."""
        self.name = "release_staged"
        self.release = release
        self._files = {**files, "manifest.json": Content(manifest_text)}
        self._folder = f"{paths.RELEASES}/{release}"
        self.facts = (facts.DEPLOYED,)

    def missing(self, read: Facts) -> str:
        """Return the first file that is missing, changed, or too many; the manifest's revision may be an older one."""
        there = stored(read[facts.DEPLOYED], self.release)
        for path, content in sorted(self._files.items()):
            found = there.get(path)
            if found is None:
                return f"{self._folder}/{path} is missing" if there else f"release {self.release} is not on the host"
            if path == "manifest.json":
                if not _same_services(found.content, content.text):
                    return f"{self._folder}/{path} was changed"
            elif found.content != content.text or found.mode != content.mode or found.owner != "root":
                return f"{self._folder}/{path} was changed on the host"
        extra = sorted(there.keys() - self._files.keys())
        return f"{self._folder}/{extra[0]} does not belong to the release" if extra else ""

    def act(self, read: Facts) -> list[Command]:
        """Return upload beside, checks there, and the rename."""
        del read
        new, old = f"{paths.RELEASES}/.{self.release}.new", f"{paths.RELEASES}/.{self.release}.old"
        units = [f"{new}/{path}" for path in sorted(self._files) if path.startswith("units/")]
        composes = [f"{new}/{path}" for path in sorted(self._files) if path.endswith("compose.yml")]
        # Older systemd has no --recursive-errors and then reports only on the named units, which is what is wanted.
        only = "only=; systemd-analyze --help | grep -q recursive-errors && only=--recursive-errors=no"
        verify = f"{only}; systemd-analyze verify $only "
        return [
            Command(
                "rm -rf {0} && mkdir -p {0} && tar -x --no-same-owner -C {0} && sync -f {0}".format(quote([new])),
                why="upload the release beside",
                stdin=archive(self._files),
            ),
            *([Command(verify + quote(units), why="let systemd check the units")] if units else []),
            *(run("docker", "compose", "-f", path, "config", "--quiet", why="let Compose check its file") for path in composes),
            Command(
                f"rm -rf {quote([old])}; [ ! -e {quote([self._folder])} ] || mv -T {quote([self._folder, old])};"
                f" mv -T {quote([new, self._folder])} && rm -rf {quote([old])}",
                why="put the release in place",
            ),
        ]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the removal of what this run staged, and of folders that are empty then."""
        # A try that was cut off may have staged another one.
        staged = sorted({self.release, *now[facts.DEPLOYED].stored} - set(before[facts.DEPLOYED].stored))
        if not staged:
            return NoUndo("the release was on the host before; its files are only as they should be")
        folders = [
            folder for release in staged for folder in (f"{paths.RELEASES}/{release}", f"{paths.RELEASES}/.{release}.new")
        ]
        return [Command(f"rm -rf {quote(folders)}; {REMOVE_EMPTY}", why="remove what was staged")]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that the staged release is still there."""
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
    """Return what smoke expects because the inventory says so; the floor of the KV pool follows what was measured meanwhile."""
    smoke = manifest.get("smoke")
    return {name: {**expected, "min_kv_tokens": None} for name, expected in smoke.items()} if isinstance(smoke, dict) else {}


class ReleaseCurrent(State):
    """The host is recorded to run the release: ``current`` points to it, and the history ends with it.

    Established last, after everything was verified: until then ``current`` and the history tell what the host served
    before, which is what an undo, or the run after a killed one, goes back to.
    """

    def __init__(self, release: str, history: Sequence[str] | None = None) -> None:
        """Take the release ("" for none) and the history to record; without one, the host's own plus this release."""
        self.name = "release_current"
        self.release = release
        self._history = tuple(history) if history is not None else None
        self.facts = (facts.DEPLOYED,)

    def _wanted(self, read: Facts) -> tuple[str, ...]:
        history = read[facts.DEPLOYED].history
        if self._history is not None:
            return self._history
        return history if history and history[-1] == self.release else (*history, self.release)

    def missing(self, read: Facts) -> str:
        """Return what is recorded instead."""
        deployed = read[facts.DEPLOYED]
        if deployed.current != self.release:
            return f"the host is recorded to run {deployed.current or 'no release'}"
        return "" if deployed.history == self._wanted(read) else f"the history says {' '.join(deployed.history) or 'nothing'}"

    def act(self, read: Facts) -> list[Command]:
        """Return history and link, in this order: the link is what decides."""
        return _record(self.release, self._wanted(read))

    def undo(self, before: Facts, now: Facts) -> list[Command]:
        """Return the record as it was."""
        del now
        deployed = before[facts.DEPLOYED]
        return _record(deployed.current, deployed.history)

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that the record differs."""
        was, is_now = before[facts.DEPLOYED], now[facts.DEPLOYED]
        return (
            ""
            if (was.current, was.history) == (is_now.current, is_now.history)
            else "the recorded release is not the previous one"
        )


def _record(release: str, history: Sequence[str]) -> list[Command]:
    if not release:
        return [run("rm", "-f", paths.CURRENT, paths.HISTORY, why="no release is recorded")]
    target, new = quote([f"{paths.RELEASES}/{release}"]), quote([f"{paths.CURRENT}.new"])
    return [
        paths.write(paths.HISTORY, "".join(f"{item}\n" for item in history), why="record the release"),
        Command(f"ln -sfn {target} {new} && mv -fT {new} {paths.CURRENT}", why="point `current` to it"),
    ]


class Pruned(State):
    """Only the newest releases are kept, of the images that Lodger pulled those that they use, and the keys they ask for."""

    def __init__(self, release: str) -> None:
        """Take the release that is current when this state is established ("" for none: nothing of ours is kept)."""
        self.name = "old_releases_pruned"
        self.release = release
        self.facts = (facts.DEPLOYED,)

    def _kept(self, deployed: Deployed) -> list[str]:
        """Return the releases to keep, oldest first: the last ones of the history that are still there, each once."""
        kept: list[str] = []
        for release in reversed(deployed.history):
            if release in deployed.stored and release not in kept and len(kept) < KEPT:
                kept.append(release)
        return kept[::-1]

    def missing(self, read: Facts) -> str:
        """Return what is too many."""
        deployed = read[facts.DEPLOYED]
        kept = self._kept(deployed)
        extra = sorted(set(deployed.stored) - set(kept))
        if extra:
            return f"release {extra[0]} is no longer needed"
        keys = _keys_of_nobody(deployed, kept)
        return f"no release asks for the key {keys[0]}" if keys else ""

    def act(self, read: Facts) -> list[Command]:
        """Return the removal of old releases, of their lines in the history, and of images that nothing kept uses."""
        deployed = read[facts.DEPLOYED]
        kept = self._kept(deployed)
        extra = sorted(set(deployed.stored) - set(kept))
        commands = []
        if kept:
            # Before the removal: cut off in between, no later rollback is sent to a release that is gone. Two lines that
            # only a removed one kept apart become one, since a rollback between equals would change nothing.
            lines = [item for item, _ in itertools.groupby(item for item in deployed.history if item in kept)]
            text = "".join(f"{item}\n" for item in lines)
            commands.append(paths.write(paths.HISTORY, text, why="the history names what is kept"))
        if extra:
            folders = quote([f"{paths.RELEASES}/{release}" for release in extra])
            commands.append(Command(f"rm -rf {folders}; {REMOVE_EMPTY}", why="remove old releases"))
        if keys := _keys_of_nobody(deployed, kept):
            files = quote([f"{paths.KEYS}/{name}" for name in keys])
            commands.append(Command(f"rm -f {files}; {paths.REMOVE_NO_KEYS}", why="remove keys that no release asks for"))
        ours = [line for line in (deployed.record("images") or "").splitlines() if line]
        try:
            used = _images(deployed, kept)
        except Refused:
            used = set(ours)  # a release that cannot say which image it uses may use any of them
        for image in ours:
            if kept and image not in used:
                # A container of somebody else may use it by now: then Docker refuses, and it stays.
                commands.append(run("docker", "image", "rm", image, why="no kept release uses this image", ok=(0, 1)))
        if kept and set(ours) - used:
            commands.append(
                paths.write(paths.IMAGES, "".join(f"{image}\n" for image in ours if image in used), why="images that are ours")
            )
        return commands

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave them removed."""
        del before, now
        return NoUndo("releases beyond the newest are not needed to go back")


def _images(deployed: Deployed, releases: Iterable[str]) -> set[str]:
    return {service.image for release in releases for service in services(deployed, release).values()}


def _keys_of_nobody(deployed: Deployed, kept: Iterable[str]) -> list[str]:
    """Return the files with keys that no kept release names; none where a release cannot say which it asks for."""
    try:
        asked = [service for release in kept for service in services(deployed, release).values() if service.key]
    except Refused:
        return []
    names = {name for one in asked for name in (one.pool, f"{one.pool}.{one.key}")}
    return [name for name in deployed.keys if name not in names]
