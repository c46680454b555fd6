"""The model hub beside the twins: the listings and files of ModelScope and Hugging Face, as their clients see them.

    server.py REPOSITORIES.json [PORT]

Below /modelscope and /huggingface the two APIs answer for the same repositories. Large files are redirected to /cdn, which
honours Range; ModelScope's small ones come at once and ignore it, as the real ones do. Nothing is on disk: a file's bytes
follow from its head, size and seed (0: zeros), or from its text. PUT /control/faults sets what goes wrong (FAULTS), PUT
/control/repositories what there is, GET /control/stats tells the bytes and requests so far, POST /control/forget begins anew.
"""

import functools
import hashlib
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LISTED_AT_MOST = 3000  # ModelScope says no more, and does not say that it does not
PAGE = 1000  # entries of a page of Hugging Face
LARGE = 64 * 1024  # from here on a file is in LFS
_PERIOD = 1_000_003  # bytes after which a seeded file repeats itself; prime, so that no block fits another's place
_CHUNK = 256 * 1024

# kind -> what it does. Any may have `source`, `path` (of one file) and `times` (after which it is over).
FAULTS = {
    "status": "answers with `code` (and `retry_after` seconds) on `on`: file or listing",
    "ignores_range": "answers a question for the rest with the whole",
    "truncates": "ends the body after `after` bytes",
    "corrupts": "changes a byte of the body",
    "longer": "gives `by` bytes more than it lists, and says so",
    "endless": "gives more than it lists, and says no length",
    "lies": "lists sizes that are `by` bytes off",
    "slow": "gives `rate` bytes a second, of all connections together",
    "name": "lists a file under the name `as`",
    "unhashed": "lists a file with no hash",
}


class World:
    """What there is, what goes wrong, and what was asked for so far."""

    def __init__(self, repositories: dict[str, Any]) -> None:
        self.lock = threading.Lock()
        self.repositories = repositories
        self.faults: list[dict[str, Any]] = []
        self.sent: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.allowance = time.monotonic()

    def fault(self, kind: str, source: str, path: str = "", on: str = "") -> dict[str, Any] | None:
        """Return the fault of a kind that holds here, and count it."""
        with self.lock:
            for fault in self.faults:
                wanted = (fault["kind"], fault.get("source", source), fault.get("path", path), fault.get("on", on))
                if wanted == (kind, source, path, on) and fault.get("times", 1) > 0:
                    if "times" in fault:
                        fault["times"] -= 1
                    return fault
        return None

    def pace(self, size: int, rate: float) -> None:
        """Wait until `size` more bytes may go at `rate` bytes a second."""
        with self.lock:
            self.allowance = max(self.allowance, time.monotonic() - 0.05) + size / rate
            until = self.allowance
        time.sleep(max(0.0, until - time.monotonic()))


@functools.lru_cache(maxsize=16)
def _pattern(seed: int) -> bytes:
    once = random.Random(seed).randbytes(_PERIOD) if seed else bytes(_PERIOD)  # noqa: S311  # the same bytes every time
    return once + once[:_CHUNK]


def body(file: dict[str, Any], first: int, size: int) -> bytes:
    """Return `size` bytes, at most one chunk, of a file from `first` on."""
    if "text" in file:
        return bytes(file["text"].encode()[first : first + size])
    head = file.get("head", "").encode("latin-1")
    if first < len(head):
        return bytes(head[first : first + size])
    return _pattern(file["seed"])[first % _PERIOD : first % _PERIOD + min(size, _CHUNK)]


def size_of(file: dict[str, Any]) -> int:
    """Return a file's size."""
    return len(file["text"].encode()) if "text" in file else int(file["size"])


@functools.lru_cache(maxsize=100_000)
def _hash(text: str, git: bool) -> str:
    file = json.loads(text)
    size, whole = size_of(file), hashlib.sha1(usedforsecurity=False) if git else hashlib.sha256()
    if git:
        whole.update(f"blob {size}\0".encode())
    at = 0
    while at < size:
        part = body(file, at, min(_CHUNK, size - at))
        whole.update(part)
        at += len(part)
    return whole.hexdigest()


def sha256(file: dict[str, Any]) -> str:
    """Return the hash that both hubs give for a large file."""
    return _hash(json.dumps(file, sort_keys=True), False)


def blob(file: dict[str, Any]) -> str:
    """Return the name that git gives a small file."""
    return _hash(json.dumps(file, sort_keys=True), True)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "hub"
    timeout = 60
    world: World
    headers: Message

    def do_HEAD(self) -> None:
        """Answer with no body."""
        self._route()

    def do_GET(self) -> None:
        """Answer."""
        self._route()

    def do_PUT(self) -> None:
        """Set faults or repositories."""
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/control/faults":
            if unknown := [fault["kind"] for fault in given if fault["kind"] not in FAULTS]:
                return self._say(400, {"unknown": unknown})
            self.world.faults = given
        elif self.path == "/control/repositories":
            self.world.repositories |= given
        else:
            return self._say(404, {})
        return self._say(200, {})

    def do_POST(self) -> None:
        """Forget what was counted; ModelScope's client also posts what it did, which nobody needs."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/control/forget":
            self.world.sent.clear()
            self.world.requests.clear()
        self._say(200, {"Code": 200, "Success": True, "Data": {}})

    def _route(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), {name: values[0] for name, values in parse_qs(url.query).items()}
        if path == "/control/stats":
            world = self.world
            return self._say(200, {"sent": dict(world.sent), "requests": dict(world.requests)})
        self.world.requests[path.split("/")[1]] += 1
        routes: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"/modelscope/api/v1/models/([^/]+/[^/]+)/repo/files", self._modelscope_files),
            (r"/modelscope/api/v1/models/([^/]+/[^/]+)/revisions", self._modelscope_revisions),
            (r"/modelscope/api/v1/models/([^/]+/[^/]+)/repo", self._modelscope_file),
            (r"/modelscope/api/v1/models/([^/]+/[^/]+)", self._modelscope_model),
            (r"/modelscope/models/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._modelscope_resolve),
            (r"/huggingface/api/models/([^/]+/[^/]+)/revision/([^/]+)", self._huggingface_revision),
            (r"/huggingface/api/models/([^/]+/[^/]+)/tree/([^/]+)", self._huggingface_tree),
            (r"/huggingface/api/models/([^/]+/[^/]+)", self._huggingface_model),
            (r"/huggingface/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._huggingface_file),
            (r"/cdn/([^/]+)/([^/]+/[^/]+)/(.+)", self._cdn),
        )
        for pattern, answer in routes:
            found = re.fullmatch(pattern, path)
            if found:
                try:
                    return answer(query, *found.groups())
                except KeyError as error:
                    return self._say(404, {"Code": 10010205001, "Message": f"not found: {error}", "error": "not found"})
        return self._say(404, {"error": f"no such page: {path}"})

    # ModelScope

    def _commit(self, source: str, name: str, revision: str) -> tuple[str, dict[str, Any]]:
        repository = self.world.repositories[name]
        commit = repository["commits"][source]
        if revision not in {commit, "master", "main"}:
            raise KeyError(revision)
        return commit, repository["files"]

    def _modelscope_files(self, query: dict[str, str], name: str) -> None:
        if self._broken("modelscope", "listing"):
            return None
        commit, files = self._commit("modelscope", name, query.get("Revision", "master"))
        folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
        entries: list[dict[str, Any]] = [{"Path": path, "Type": "tree", "Size": 0, "Name": path} for path in folders]
        entries += [
            {
                "Path": self._name("modelscope", path),
                "Name": path.rpartition("/")[2],
                "Type": "blob",
                "Size": size_of(file) + self._off("modelscope", path),
                "Sha256": self._hash("modelscope", path, sha256(file)),
                "Revision": commit,
                "IsLFS": size_of(file) >= LARGE,
                "Mode": "33188",
            }
            for path, file in files.items()
        ]
        data = {"Files": entries[:LISTED_AT_MOST], "IsVisual": False, "LatestCommitter": {"Id": "", "ShortId": commit[:8]}}
        return self._say(200, {"Code": 200, "Success": True, "Message": "success", "Data": data})

    def _modelscope_revisions(self, _: dict[str, str], name: str) -> None:
        commit, _ = self._commit("modelscope", name, "master")
        branches = [{"Revision": "master", "CreatedAt": 1_700_000_000, "Sha": commit}]
        self._say(200, {"Code": 200, "Success": True, "Data": {"RevisionMap": {"Branches": branches, "Tags": []}}})

    def _modelscope_model(self, _: dict[str, str], name: str) -> None:
        self._commit("modelscope", name, "master")
        self._say(200, {"Code": 200, "Success": True, "Data": {"Name": name.partition("/")[2], "Path": name.partition("/")[0]}})

    def _modelscope_file(self, query: dict[str, str], name: str) -> None:
        self._modelscope_resolve(query, name, query.get("Revision", "master"), query["FilePath"])

    def _modelscope_resolve(self, _: dict[str, str], name: str, revision: str, path: str) -> None:
        commit, files = self._commit("modelscope", name, revision)
        if size_of(files[path]) >= LARGE:
            self._redirect("modelscope", name, path, files[path], commit)
        else:
            self._send("modelscope", path, files[path], ranges=False, commit=commit)

    # Hugging Face

    def _huggingface_revision(self, _: dict[str, str], name: str, revision: str) -> None:
        if not self._broken("huggingface", "listing"):
            commit, files = self._commit("huggingface", name, revision)
            siblings = [{"rfilename": path} for path in files]
            self._say(200, {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _huggingface_model(self, query: dict[str, str], name: str) -> None:
        self._huggingface_revision(query, name, "main")

    def _huggingface_tree(self, query: dict[str, str], name: str, revision: str) -> None:
        if self._broken("huggingface", "listing"):
            return None
        _, files = self._commit("huggingface", name, revision)
        first = int(query.get("cursor", "0"))
        entries = []
        for path, file in list(files.items())[first : first + PAGE]:
            size = size_of(file) + self._off("huggingface", path)
            entry: dict[str, Any] = {"type": "file", "path": self._name("huggingface", path), "size": size, "oid": "0" * 40}
            if size_of(file) >= LARGE:
                entry["lfs"] = {"oid": self._hash("huggingface", path, sha256(file)), "size": size, "pointerSize": 135}
            else:
                entry["oid"] = self._hash("huggingface", path, blob(file))
            entries.append(entry)
        link = {}
        if first + PAGE < len(files):
            cursor = f"?recursive=true&expand=false&cursor={first + PAGE}"
            link = {"Link": f'<http://{self.headers["Host"]}{urlsplit(self.path).path}{cursor}>; rel="next"'}
        return self._say(200, entries, link)

    def _huggingface_file(self, _: dict[str, str], name: str, revision: str, path: str) -> None:
        commit, files = self._commit("huggingface", name, revision)
        if size_of(files[path]) >= LARGE:
            self._redirect("huggingface", name, path, files[path], commit)
        else:
            self._send("huggingface", path, files[path], ranges=True, commit=commit)

    # Files

    def _cdn(self, _: dict[str, str], source: str, name: str, path: str) -> None:
        commit, files = self._commit(source, name, "main")
        self._send(source, path, files[path], ranges=True, commit=commit)

    def _redirect(self, source: str, name: str, path: str, file: dict[str, Any], commit: str) -> None:
        if self._broken(source, "file", path):
            return
        self.send_response(302)
        self.send_header("Location", f"http://{self.headers['Host']}/cdn/{source}/{name}/{quote(path)}")
        self._describe(file, commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _describe(self, file: dict[str, Any], commit: str) -> None:
        name = sha256(file) if size_of(file) >= LARGE else blob(file)
        for header, value in (("ETag", f'"{name}"'), ("X-Repo-Commit", commit), ("X-Linked-Size", str(size_of(file)))):
            self.send_header(header, value)
        self.send_header("X-Linked-ETag", f'"{name}"')

    def _send(self, source: str, path: str, file: dict[str, Any], *, ranges: bool, commit: str) -> None:
        world, listed = self.world, size_of(file)
        if self._broken(source, "file", path):
            return
        more = world.fault("longer", source, path)
        size = listed + (more["by"] if more else 0)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and (not ranges or world.fault("ignores_range", source, path)):
            asked = None
        first = int(asked[1]) if asked else 0
        last = min(int(asked[2]), size - 1) if asked and asked[2] else size - 1
        if asked and first >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        endless = world.fault("endless", source, path)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        if ranges:
            self.send_header("Accept-Ranges", "bytes")
        self._describe(file, commit)
        if endless:
            self.send_header("Connection", "close")
            self.close_connection = True
            last += 1 << 40
        else:
            self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "GET":
            self._body(source, path, file, first, last + 1)

    def _body(self, source: str, path: str, file: dict[str, Any], first: int, end: int) -> None:
        world = self.world
        cut, wrong, slow = (world.fault(kind, source, path) for kind in ("truncates", "corrupts", "slow"))
        stop = min(end, first + cut["after"]) if cut else end
        at = first
        while at < stop:
            part = body(file, at, min(_CHUNK, stop - at)) or b"\0" * min(_CHUNK, stop - at)
            if wrong:
                part, wrong = bytes([part[0] ^ 1]) + part[1:], None
            if slow:
                part = part[:16384]
                world.pace(len(part), slow["rate"])
            self.wfile.write(part)
            at += len(part)
            with world.lock:
                world.sent[source] += len(part)
                world.sent[path] += len(part)
        if stop < end:
            self.close_connection = True

    # Faults and answers

    def _broken(self, source: str, on: str, path: str = "") -> bool:
        fault = self.world.fault("status", source, path, on)
        if fault:
            headers = {"Retry-After": str(fault["retry_after"])} if "retry_after" in fault else {}
            self._say(fault["code"], {"error": "acted out"}, headers)
        return fault is not None

    def _off(self, source: str, path: str) -> int:
        fault = self.world.fault("lies", source, path)
        return int(fault["by"]) if fault else 0

    def _name(self, source: str, path: str) -> str:
        fault = self.world.fault("name", source, path)
        return str(fault["as"]) if fault else path

    def _hash(self, source: str, path: str, digest: str) -> str:
        return "" if self.world.fault("unhashed", source, path) else digest

    def _say(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        for name, content in {"Content-Type": "application/json", "Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, content)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class Server(ThreadingHTTPServer):
    """A thread for each connection; clients that go away are the daily bread of it."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that was broken off."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def serve(repositories: dict[str, Any], address: str = "0.0.0.0", port: int = 80) -> Server:
    """Return a server of these repositories that listens and does not yet answer."""
    return Server((address, port), type("Bound", (Handler,), {"world": World(repositories)}))


if __name__ == "__main__":
    serve(json.loads(Path(sys.argv[1]).read_text()), port=int(sys.argv[2]) if len(sys.argv) > 2 else 80).serve_forever()
