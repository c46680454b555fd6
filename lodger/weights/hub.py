"""What the model hubs say of a repository: the files of one revision, with sizes and hashes. Pure: who asks is the caller.

A *conversation* yields the path of each request and is sent the hub's response; it returns a Listing, or raises HubError.
Shapes: ModelScope's `repo/files` and Hugging Face's `tree`, as their own clients (modelscope_hub 0.5, huggingface_hub 2.4)
read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from lodger.errors import LodgerError

LISTED_AT_MOST = 3000
"""Entries after which ModelScope's listing ends without a word (modelscope_hub, REPO_FILES_TRUNCATION_LIMIT)."""
_PAGES = 100  # of Hugging Face's listing, 1000 entries each
_LARGEST = 1 << 50
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASHES = {"sha256": re.compile(r"[0-9a-f]{64}"), "git": re.compile(r"[0-9a-f]{40}")}


class HubError(LodgerError):
    """A hub did not answer, has no such revision, or says what can not be believed."""


class HubSilent(HubError):
    """A hub did not answer at all."""


@dataclass(frozen=True)
class Response:
    """An HTTP response: status, headers by lower-case name, body."""

    status: int
    headers: Mapping[str, str]
    body: str


@dataclass(frozen=True)
class Hash:
    """What the bytes of a file must come to.

    ``kind`` is ``sha256``; ``git``, the SHA-1 of the file as a git blob, which is all that Hugging Face gives for a small
    file; or ``none``, with no ``digest``, where the hub gives nothing.
    """

    kind: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.digest}"

    @staticmethod
    def read(text: str) -> Hash:
        """Return the hash that ``str`` gave; raise ValueError on anything else."""
        kind, _, digest = text.partition(":")
        if kind == "none" and not digest:
            return Hash("none")
        if kind not in _HASHES or not _HASHES[kind].fullmatch(digest):
            raise ValueError(f"{text[:80]!r} is no hash")
        return Hash(kind, digest)


@dataclass(frozen=True)
class Listed:
    """One file of a repository: path below it, size in bytes, hash, and where the hub gives it, below the endpoint."""

    path: str
    size: int
    hash: Hash
    url: str


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit; ``commit`` is as much of its name as the hub tells."""

    source: str
    commit: str
    files: tuple[Listed, ...]


Conversation = Generator[str, Response, Listing]


def modelscope(repository: str, revision: str | None) -> Conversation:
    """Ask ModelScope for the files of a revision; None is its branch ``master``.

    Each file is fetched at the commit that the listing names for it, so that a branch may move meanwhile.
    """
    asked, repo = revision or "master", quote(repository)
    query = urlencode({"Revision": asked, "Recursive": "true"})
    said = _json((yield f"/api/v1/models/{repo}/repo/files?{query}"), f"{repository} at {asked}")
    data = _field(said, "Data", dict)
    entries = _field(data, "Files", list)
    if len(entries) >= LISTED_AT_MOST:
        raise HubError(
            f"the listing of {repository} is cut off",
            cause=f"it has {len(entries)} entries, and this hub stops at {LISTED_AT_MOST} without saying so",
        )
    files = []
    for entry in entries:
        if _field(entry, "Type", str) == "tree":
            continue
        path = _field(entry, "Path", str)
        at = entry.get("Revision") or ""
        query = urlencode({"Revision": at if _COMMIT.fullmatch(at) else asked, "FilePath": path})
        files.append(
            Listed(
                path,
                _size(entry.get("Size"), path),
                _hash(entry.get("Sha256")),
                f"/api/v1/models/{repo}/repo?{query}",
            )
        )
    return Listing("modelscope", _head(data, entries, asked), tuple(files))


def _head(data: Mapping[str, Any], entries: list[Any], asked: str) -> str:
    """Return the commit of the listing: in full if it was asked for or stands anywhere, else what the hub tells of it."""
    latest = data.get("LatestCommitter") or {}
    short = str(latest.get("Id") or latest.get("ShortId") or "")
    known = [asked, short, *(str(entry.get("Revision") or "") for entry in entries)]
    return next((one for one in known if _COMMIT.fullmatch(one) and one.startswith(short)), short or asked)


def huggingface(repository: str, revision: str | None) -> Conversation:
    """Ask Hugging Face, or a mirror of it, for the files of a revision; None is its branch ``main``."""
    commit, repo = revision or "main", quote(repository)
    if not _COMMIT.fullmatch(commit):
        said = _json((yield f"/api/models/{repo}/revision/{quote(commit, safe='')}"), f"{repository} at {commit}")
        commit = _field(said, "sha", str)
    if not _COMMIT.fullmatch(commit):
        raise HubError("the hub names no commit", cause=f"{commit[:80]!r}")
    first = f"/api/models/{repo}/tree/{commit}"
    files, query = [], "recursive=true&expand=false"
    for _ in range(_PAGES):
        response = yield f"{first}?{query}"
        for entry in _json(response, f"{repository} at {commit}", list):
            if _field(entry, "type", str) != "file":
                continue
            path, large = _field(entry, "path", str), entry.get("lfs")
            listed = large or entry
            url = f"/{repo}/resolve/{commit}/{quote(path)}"
            files.append(Listed(path, _size(listed.get("size"), path), _hash(listed.get("oid")), url))
        following = re.search(r'<([^>]+)>;\s*rel="next"', response.headers.get("link", ""))
        if following is None:
            return Listing("huggingface", commit, tuple(files))
        # Only the cursor is taken over: the link of a mirror may name the hub that it mirrors.
        query = urlsplit(following[1]).query
    raise HubError(f"the listing of {repository} has no end", cause=f"{_PAGES} pages, and another one is announced")


HUBS: Mapping[str, Callable[[str, str | None], Conversation]] = {"modelscope": modelscope, "huggingface": huggingface}


def _json(response: Response, what: str, kind: type = dict) -> Any:
    if response.status in {401, 403, 404}:
        raise HubError(f"the hub has no {what}", cause=f"HTTP {response.status}: {' '.join(response.body.split())[:120]}")
    if response.status != 200:
        raise HubError("the hub gives no listing", cause=f"HTTP {response.status}: {' '.join(response.body.split())[:120]}")
    try:
        said = json.loads(response.body)
    except ValueError as error:
        raise HubError("the hub's listing is no JSON", cause=f"{response.body[:80]!r}") from error
    if not isinstance(said, kind):
        raise HubError("the form of the hub's listing is not known", cause=f"{response.body[:80]!r}")
    return said


def _field(data: Any, name: str, kind: type) -> Any:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise HubError("the form of the hub's listing is not known", cause=f"no {name} in {str(data)[:80]!r}")
    return value


def _size(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise HubError("the hub gives a size that is not a number", cause=f"{path!r}: {value!r}")
    return value


def _hash(digest: object) -> Hash:
    """Return the hash, whose kind its length tells; one that is none leaves its file unproved, which the plan says."""
    text = digest.lower() if isinstance(digest, str) else ""
    return next((Hash(kind, text) for kind, pattern in _HASHES.items() if pattern.fullmatch(text)), Hash("none"))


def parse_response(text: str) -> Response:
    """Return the last response in what `curl -i -L` printed; raise ValueError where there is none."""
    response: Response | None = None
    while text.startswith("HTTP/"):
        head, separator, rest = text.partition("\r\n\r\n")
        if not separator:
            break
        first, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        response, text = Response(int(first.split()[1]), headers, rest), rest
    if response is None:
        raise ValueError(f"no HTTP response: {text[:80]!r}")
    return response
