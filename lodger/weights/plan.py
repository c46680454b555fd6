"""What is to be fetched: listings judged, sources agreed, room reckoned; and the file from which the host works. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import quote

from lodger.errors import Refused
from lodger.weights.hub import Hash, HubError, Listed, Listing

OWN = ".lodger"
"""Folder inside a model's folder with what is half there, the lock and the manifest; nothing else of ours stands there."""
_OWNED = ("0 700 directory", "0 2700 directory")  # as the host's script makes it, in a folder of the set-group-ID kind too
_LAST = "config.json"  # put in place last: a folder without it is no model


def trouble(path: str) -> str:
    """Return why ``path`` may not be written below a model's folder, "" when it may."""
    parts = path.split("/")
    if not path or path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "it leaves the folder"
    if not path.isprintable() or "\\" in path:
        return "it has characters that no file of a model needs"
    if parts[0] == OWN:
        return "the name is ours"
    if len(path.encode()) > 1000 or any(len(part.encode()) > 255 for part in parts):
        return "it is too long"
    return ""


def judged(listing: Listing) -> Listing:
    """Return ``listing``; raise HubError when one of its names is not to be trusted, or it lists nothing."""
    paths = [file.path for file in listing.files]
    for path in paths:
        why = trouble(path)
        if why:
            raise HubError("the listing has a name that is not to be trusted", cause=f"{path[:200]!r}: {why}")
    if not paths:
        raise HubError("the hub lists no file")
    folders = {path[:at] for path in paths for at, letter in enumerate(path) if letter == "/"}
    twice = sorted({path for path in paths if paths.count(path) > 1} if len(set(paths)) < len(paths) else folders & set(paths))
    if twice:
        raise HubError("the listing has a name twice", cause=f"{twice[0]!r}")
    return listing


@dataclass(frozen=True)
class Planned:
    """One file: path below the model's folder, size in bytes, hash, and its URLs in order of preference."""

    path: str
    size: int
    hash: Hash
    urls: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the file while it is half there: the same for the same bytes at the same place, whoever has them."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", self.path.rpartition("/")[2])[:100]
        return f"{safe}.{hashlib.sha256(f'{self.path} {self.size} {self.hash}'.encode()).hexdigest()[:16]}"

    @property
    def record(self) -> str:
        """What a manifest says of it, but for the time of the last change."""
        return f"{self.hash}\t{self.size}\t{self.path}"


@dataclass(frozen=True)
class FetchPlan:
    """What the host works from.

    ``directory`` is the model's folder below ``root``; ``origin`` the hub that listed the files, ``repository`` there,
    ``revision`` what was asked for ("" for the hub's default branch), ``commit`` what it came to.
    """

    model: str
    root: str
    directory: str
    origin: str
    repository: str
    revision: str
    commit: str
    files: tuple[Planned, ...]

    @property
    def target(self) -> str:
        """The model's folder."""
        return f"{self.root}/{self.directory}"

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    @property
    def ordered(self) -> list[Planned]:
        """The files as the host takes them: the largest first, and that without which a folder is no model last."""
        return sorted(self.files, key=lambda file: (file.path == _LAST, -file.size, file.path))

    @property
    def id(self) -> str:
        """Twelve hex digits of what is fetched, whoever gives it."""
        whole = "\n".join([self.target, self.commit, *sorted(file.record for file in self.files)])
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def taken_from(self, url: str) -> FetchPlan:
        """Return the plan with every file at its path below ``url``."""
        return replace(self, files=tuple(replace(file, urls=(f"{url}/{quote(file.path)}",)) for file in self.files))

    def text(self, *, rehash: bool = False, overwrite: bool = False, share: str = "") -> str:
        """Return the plan as the host's script reads it: headers, an empty line, a line a file, largest first.

        ``rehash`` reads every file again, whatever the manifest says; ``overwrite`` puts right what differs; ``share`` is the
        URL of the host that serves them.
        """
        headers = {
            "id": self.id,
            "model": self.model,
            "root": self.root,
            "directory": self.directory,
            "origin": self.origin,
            "repository": self.repository,
            "revision": self.revision or "-",
            "commit": self.commit,
            "rehash": "yes" if rehash else "no",
            "replace": "yes" if overwrite else "no",
            "share": share or "-",
        }
        lines = ["\t".join((f.key, str(f.size), str(f.hash), f.path, *f.urls)) for f in self.ordered]
        return "\n".join([*(f"#{name}\t{value}" for name, value in headers.items()), "", *lines, ""])


@dataclass(frozen=True)
class Source:
    """A hub at ``endpoint`` and what it lists; ``exact`` where that is the revision that was asked for."""

    endpoint: str
    listing: Listing
    exact: bool

    @cached_property
    def by_path(self) -> Mapping[str, Listed]:
        """The files of the listing."""
        return {file.path: file for file in self.listing.files}


def agreed(
    sources: Sequence[Source], model: str, root: str, directory: str, repository: str, revision: str | None
) -> FetchPlan:
    """Return the plan of ``sources``, which come in order of preference; the first exact one decides what is fetched.

    Any other gives a file only if it lists it with the same size and no other hash; what it gives is checked against the
    deciding hash all the same. Raises ValueError when nothing decides.
    """
    deciding = next((source.listing for source in sources if source.exact), None)
    if deciding is None:
        raise ValueError("none of them answers")
    files = tuple(Planned(file.path, file.size, file.hash, _urls(file, sources)) for file in deciding.files)
    return FetchPlan(model, root, directory, deciding.source, repository, revision or "", deciding.commit, files)


def _urls(file: Listed | Planned, sources: Sequence[Source]) -> tuple[str, ...]:
    """Return where ``sources`` have what may be ``file``."""
    return tuple(
        source.endpoint + other.url
        for source in sources
        for other in [source.by_path.get(file.path)]
        if other is not None and other.size == file.size and (other.hash.kind != file.hash.kind or other.hash == file.hash)
    )


def remembered(
    plan: FetchPlan, sources: Sequence[Source], endpoints: Sequence[str], repository: str, revision: str | None
) -> FetchPlan:
    """Return the plan of an earlier fetch for today, when none of ``sources`` decides: its hashes prove what they give.

    Each file comes from the sources that list it, then from where the plan had it, below one of ``endpoints``. Raises
    ValueError when the plan is of something else, or a file would come from nowhere.
    """
    if plan.repository != repository or (revision or "") not in {plan.revision, plan.commit}:
        raise ValueError(f"it is of {plan.repository} at {plan.revision or plan.commit}")
    files = []
    for file in plan.files:
        before = [url for url in file.urls if any(url.startswith(f"{endpoint}/") for endpoint in endpoints)]
        files.append(replace(file, urls=tuple(dict.fromkeys([*_urls(file, sources), *before]))))
        if not files[-1].urls:
            raise ValueError(f"nobody has {file.path}")
    return replace(plan, files=tuple(files))


# ---------------------------------------------------------------- what is on the host


@dataclass(frozen=True)
class FetchManifest:
    """What a fetch recorded: headers, and for each path the hash, the size, and the time of its last change (s)."""

    headers: Mapping[str, str]
    files: Mapping[str, tuple[Hash, int, int]]

    @property
    def commit(self) -> str:
        """The commit that was fetched."""
        return self.headers.get("commit", "")

    @property
    def revision(self) -> str:
        """What had been asked for, "" for the default branch."""
        return self.headers.get("revision", "-").removeprefix("-")

    def answers(self, revision: str | None) -> bool:
        """Whether what was fetched is ``revision``; any is, where none is declared."""
        return revision is None or revision in {self.commit, self.revision}


def parse_manifest(text: str) -> FetchManifest | None:
    """Return the manifest; None for nothing. Raises ValueError on what no fetch wrote."""
    headers, files = {}, {}
    for line in text.split("\n"):
        if line.startswith("#"):
            name, _, value = line[1:].partition("\t")
            headers[name] = value
        elif line:
            hash_, size, changed, path = line.split("\t")
            files[path] = (Hash.read(hash_), int(size), int(changed))
    return FetchManifest(headers, files) if headers else None


@dataclass(frozen=True)
class FoundFolder:
    """A model's folder as it stands: path -> (kind as find's %y, size, last change in s); what is half there, by key.

    ``own`` is who owns our folder in it, with its mode and kind, "" where there is none.
    """

    real: str
    real_root: str
    files: Mapping[str, tuple[str, int, int]]
    half: Mapping[str, int]
    free: int
    own: str = ""


def parse_found(text: str) -> FoundFolder:
    """Return the folder that the fact's script printed; raise ValueError on anything else."""
    real, real_root, free, *lines = text.split("\n")
    files: dict[str, tuple[str, int, int]] = {}
    half: dict[str, int] = {}
    own = ""
    for line in lines:
        what, *fields = line.split("\t", 4)
        if what == "file" and len(fields) == 4:
            kind, size, changed, path = fields
            files[path] = (kind, int(size), int(changed.partition(".")[0]))
        elif what == "half" and len(fields) == 2:
            half[fields[1]] = int(fields[0])
        elif what == "own":
            own = fields[0]
    return FoundFolder(real, real_root, files, half, int(free) * 1024, own)


def complete(manifest: FetchManifest, found: FoundFolder) -> bool:
    """Whether every file of the manifest is there as the fetch left it."""
    return all(found.files.get(path) == ("f", size, changed) for path, (_, size, changed) in manifest.files.items())


def strangers(paths: Sequence[str], found: FoundFolder) -> list[str]:
    """Return the files in the folder that are not of ``paths``: somebody else's, left alone."""
    return sorted(path for path, (kind, _, _) in found.files.items() if kind != "d" and path not in set(paths))


def needed(plan: FetchPlan, found: FoundFolder) -> int:
    """Return the bytes that the fetch will still write: what is neither in place, by its size, nor half there."""
    total = 0
    for file in plan.files:
        kind, size, _ = found.files.get(file.path, ("", -1, 0))
        if kind == "f" and size == file.size:
            continue
        total += max(0, file.size - max(found.half.get(f"{file.key}.part", 0), found.half.get(f"{file.key}.ok", 0)))
    return total


def refuse(plan: FetchPlan, manifest: FetchManifest | None, found: FoundFolder, *, overwrite: bool) -> None:
    """Raise Refused for what is known to be wrong before anything is written."""
    where = found.real_root.rstrip("/")
    if found.real != f"{where}/{plan.directory}":
        raise Refused(
            f"{plan.target} is reached through a symbolic link",
            cause=f"it leads to {found.real}",
            hint="name the folder itself as `directory:` below `models_dir:`",
        )
    if found.own not in {"", *_OWNED}:
        raise Refused(
            f"{plan.target}/{OWN} is there, and not ours",
            cause=f"whoever made it could have us write elsewhere: owner and mode are {found.own}, not {_OWNED[0]}",
            hint="move it away, then run this again",
        )
    for file in plan.files:
        parents = [file.path[:at] for at, letter in enumerate(file.path) if letter == "/"]
        for path, fits in ((file.path, "f"), *((parent, "d") for parent in parents)):
            kind, size, changed = found.files.get(path, (fits, file.size, 0))
            if kind != fits:
                what = {"l": "a symbolic link", "d": "a folder", "f": "a file"}.get(kind, "something else")
                raise Refused(f"{plan.target}/{path} is {what}", hint="move it away, then run this again")
            ours = manifest is not None and manifest.files.get(path, (None, -1, -1))[1:] == (size, changed)
            if fits == "f" and size != file.size and not ours and not overwrite:
                raise Refused(
                    f"{plan.target}/{path} is there with other content",
                    cause=f"it has {size} bytes, the hub says {file.size}",
                    hint="if nobody needs it as it is, run this again with --replace",
                )


def no_room(need: int, found: FoundFolder, target: str) -> Refused:
    """Return the refusal for want of room."""
    return Refused(
        f"there is no room for the weights in {target}",
        cause=f"{found.free / 2**30:.1f} GiB are free, {need / 2**30:.1f} GiB are still to be fetched",
        hint="make room below models_dir, then run this again",
    )


def from_manifest(manifest: FetchManifest, model: str, root: str, directory: str) -> FetchPlan:
    """Return the plan of what a manifest records, with no URLs: to hash it anew, or to take it from another host."""
    said = manifest.headers
    files = tuple(Planned(path, size, hash_) for path, (hash_, size, _) in manifest.files.items())
    return FetchPlan(
        model,
        root,
        directory,
        said.get("origin", ""),
        said.get("repository", ""),
        manifest.revision,
        manifest.commit,
        files,
    )


def parse_plan(text: str, root: str, directory: str) -> FetchPlan:
    """Return the plan that ``Plan.text`` wrote; raise ValueError on anything else."""
    head, separator, body = text.partition("\n\n")
    if not separator:
        raise ValueError("no plan")
    said = dict(line.removeprefix("#").split("\t", 1) for line in head.split("\n"))
    files = []
    for line in body.splitlines():
        _, size, hash_, path, *urls = line.split("\t")
        files.append(Planned(path, int(size), Hash.read(hash_), tuple(urls)))
    revision = said["revision"].removeprefix("-")
    return FetchPlan(said["model"], root, directory, said["origin"], said["repository"], revision, said["commit"], tuple(files))
