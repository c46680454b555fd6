#!/usr/bin/python3
"""A service of somebody else's: holds GPUs open, some memory of each locked, and answers on a port. Ends on SIGTERM.

Usage: gpu_service.py [--gpus 0,1] [--memory-mib 1024] [--port 8000] [--name NAME]
"""

import argparse
import errno
import fcntl
import http.server
import json
import os
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import IO

DEV = Path(os.environ.get("SIM_DEV_DIR", "/dev"))
CUDA_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
MEMORY_AT = 1 << 20
FLOCK = "hhqqi4x"


def hold(index: int, mib: int) -> IO[bytes]:
    """Open a GPU and lock the first free range of `mib` MiB, which is held for as long as the file stays open."""
    try:
        device = (DEV / f"nvidia{index}").open("r+b", buffering=0)
    except FileNotFoundError:
        sys.exit("CUDA error 100: no CUDA-capable device is detected")
    about = json.loads(device.readline())
    if CUDA_LIBRARY.is_symlink() and CUDA_LIBRARY.readlink().name != f"libcuda.so.{about['driver']}":
        sys.exit("CUDA error 803: system has unsupported display driver / cuda driver combination")
    end = MEMORY_AT + about["memory_mib"]
    at = MEMORY_AT
    while mib and at + mib <= end:
        try:
            fcntl.lockf(device, fcntl.LOCK_EX | fcntl.LOCK_NB, mib, at)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            ask = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, at, mib, 0)
            _, _, start, length, _ = struct.unpack(FLOCK, fcntl.fcntl(device, fcntl.F_GETLK, ask))
            at = max(at + 1, start + length)
        else:
            return device
    if mib:
        sys.exit(f"CUDA out of memory. Tried to allocate {mib} MiB on GPU {index}")
    return device


def serve(port: int, about: dict[str, object]) -> None:
    """Answer every GET with a few facts, in a thread."""
    body = json.dumps(about).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    """Hold, listen, wait for the end."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--gpus", default="")
    parse.add_argument("--memory-mib", type=int, default=0)
    parse.add_argument("--port", type=int, default=0)
    parse.add_argument("--name", default="service")
    options = parse.parse_args()
    # In a container this is process 1, for which SIGTERM does nothing by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    held = [hold(int(index), options.memory_mib) for index in options.gpus.split(",") if index]
    # As every CUDA program does; and so neither the module behind them can be unloaded.
    shared = [path.open("rb") for path in (DEV / "nvidiactl", DEV / "nvidia-uvm") if held and path.exists()]
    if options.port:
        serve(options.port, {"service": options.name, "gpus": len(held)})
    print(f"{options.name}: ready, {len(held) + len(shared)} devices open", flush=True)
    while True:
        signal.pause()


main()
