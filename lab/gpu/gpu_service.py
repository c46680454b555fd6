#!/usr/bin/python3
"""A service of somebody else's: holds GPUs open, some memory of each locked, and answers on a port. Ends on SIGTERM.

Usage: gpu_service.py [--gpus 0,1] [--memory-mib 1024] [--port 8000] [--name NAME]
"""

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
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
    """Answer whoever connects with a few facts, in a thread. By hand, for http.server takes longer to load than all else."""
    body = json.dumps(about)
    head = f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    listener = socket.create_server(("0.0.0.0", port))

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                connection.recv(65536)
                connection.sendall((head + body).encode())

    threading.Thread(target=answer, daemon=True).start()


def main() -> None:
    """Hold, listen, wait for the end."""
    options = {"--gpus": "", "--memory-mib": "0", "--port": "0", "--name": "service"}
    options |= dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    name, port, gpus = options["--name"], int(options["--port"]), options["--gpus"].split(",")
    # In a container this is process 1, for which SIGTERM does nothing by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    held = [hold(int(index), int(options["--memory-mib"])) for index in gpus if index]
    # As every CUDA program does; and so neither the module behind them can be unloaded.
    shared = [path.open("rb") for path in (DEV / "nvidiactl", DEV / "nvidia-uvm") if held and path.exists()]
    if port:
        serve(port, {"service": name, "gpus": len(held)})
    print(f"{name}: ready, {len(held) + len(shared)} devices open", flush=True)
    while True:
        signal.pause()


main()
