"""Serve the files of one model's folder to another host, read-only; systemd runs it as lodger-share-<model>-<token>.

    share.py FOLDER TOKEN IDLE    the names that may be asked for come on standard input, a line each

It prints the port it took. Paths begin with the token. It ends at `/TOKEN/.done`, or after IDLE seconds without a request.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

FOLDER, TOKEN, IDLE = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
NAMES = frozenset(sys.stdin.read().splitlines())
# When somebody was last heard of, and how many are being served.
heard, serving, turn = time.monotonic(), 0, threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """GET of a whole file, or of its rest (`Range: bytes=N-`)."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Serve one file."""
        global heard, serving
        with turn:
            heard, serving = time.monotonic(), serving + 1
        try:
            self._answer()
        finally:
            with turn:
                heard, serving = time.monotonic(), serving - 1

    def _answer(self) -> None:
        token, _, name = unquote(self.path.removeprefix("/")).partition("/")
        if token != TOKEN or name not in NAMES | {"", ".done"}:
            self.send_error(404)
            return
        if name in {"", ".done"}:
            self.send_response(204)
            self.end_headers()
            if name:
                threading.Thread(target=server.shutdown).start()
            return
        try:
            file = os.fdopen(os.open(FOLDER / name, os.O_RDONLY | os.O_NOFOLLOW), "rb")
        except OSError:
            self.send_error(404)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            first = int(asked[1]) if asked else 0
            if asked and first >= size:
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - first))
            self.end_headers()
            file.seek(first)
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: standard output says the port, and nothing else."""


class Server(ThreadingHTTPServer):
    """A thread for each connection; what a client breaks off is no error."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: the other side goes on from where it was."""


server = Server(("0.0.0.0", 0), Handler)  # noqa: S104  # another host is to reach it
print(server.server_address[1], flush=True)


def watch() -> None:
    """End when nobody has asked for anything for too long."""
    while serving or time.monotonic() - heard < IDLE:
        time.sleep(1)
    server.shutdown()


threading.Thread(target=watch, daemon=True).start()
server.serve_forever(0.2)
