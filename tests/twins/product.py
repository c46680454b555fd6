"""The product in processes of its own, each forked from one that has loaded all modules: half of a short run is loading them.

Everything else is as with `python -m lodger`: own process id, environment, arguments, pipes and signals, and the same end.
This file is both sides: imported, it starts and asks the loaded process; run as a program, it is that process.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence

from lab.run import CHECKOUT


class Process:
    """A run, used as a Popen is: ``stderr`` may be read a line at a time before ``communicate`` returns the rest."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], first: str = "") -> None:
        """Start a task; ``first`` is Python that it runs before."""
        (out, out_end), (err, err_end), (status, status_end) = os.pipe(), os.pipe(), os.pipe()
        asked = json.dumps({"words": list(words), "environment": dict(environment), "first": first}).encode()
        with _asking:
            loaded = _loaded()
            loaded.sendall(len(asked).to_bytes(4, "big"))
            socket.send_fds(loaded, [asked], [out_end, err_end, status_end])
        for end in (out_end, err_end, status_end):
            os.close(end)
        self.args = list(words)
        self._code: int | None = None
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self._status = os.fdopen(status, "rb", buffering=0)
        self._process = os.pidfd_open(int.from_bytes(self._status.read(8), "big"))

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    @property
    def returncode(self) -> int:
        """The exit code of a run that has ended."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, that of a signal negative. Raises TimeoutExpired."""
        if self._code is None:
            with selectors.DefaultSelector() as ended:
                ended.register(self._status, selectors.EVENT_READ)
                if not ended.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._code = int.from_bytes(self._status.read(8), "big", signed=True)
        return self._code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both outputs to their ends and wait for its own. Raises TimeoutExpired; it may be called again then."""
        if not hasattr(self, "_rest"):
            self._rest: dict[str, str] = {}
            self._readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")]
            for reader in self._readers:
                reader.start()
        self.wait(timeout)
        for reader in self._readers:
            reader.join()
        return self._rest["stdout"], self._rest["stderr"]

    def _read(self, name: str) -> None:
        self._rest[name] = getattr(self, name).read()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, which comes too late when it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._process, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        """Give back its descriptors."""
        os.close(self._process)
        for file in (self.stdout, self.stderr, self._status):
            file.close()


_asking = threading.Lock()


@functools.cache
def _loaded() -> socket.socket:
    """Start the process that has all modules, and return the way to it; it ends with this one."""
    here, there = socket.socketpair()
    with there:
        argv = [sys.executable, "-m", "tests.twins.product", str(there.fileno())]
        subprocess.Popen(argv, cwd=CHECKOUT, pass_fds=[there.fileno()])
    return here


# ---------------------------------------------------------------- the loaded process


def load() -> None:
    """Load every module of the product."""
    lodger = importlib.import_module("lodger")
    for module in pkgutil.walk_packages(lodger.__path__, "lodger."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("tasks")


def serve(asking: socket.socket) -> dict[str, object]:
    """Fork for each run that is asked for, and tell how it ended. Returns in the forked process, with what was asked."""
    running: dict[int, tuple[int, int]] = {}  # of a run's pidfd: its process id, and where its end is told
    with selectors.DefaultSelector() as events:
        events.register(asking, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is asking:
                    size = int.from_bytes(asking.recv(4, socket.MSG_WAITALL), "big")
                    if not size:
                        sys.exit()  # whoever asked is gone
                    asked, files, *_ = socket.recv_fds(asking, size, 3)
                    asked += asking.recv(size - len(asked), socket.MSG_WAITALL) if len(asked) < size else b""
                    pid = os.fork()
                    if not pid:
                        become(*files)
                        request: dict[str, object] = json.loads(asked)
                        return request
                    os.write(files[2], pid.to_bytes(8, "big"))
                    process = os.pidfd_open(pid)
                    running[process] = (pid, files[2])
                    events.register(process, selectors.EVENT_READ)
                    os.close(files[0])
                    os.close(files[1])
                else:
                    pid, status = running.pop(key.fd)
                    events.unregister(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    os.write(status, code.to_bytes(8, "big", signed=True))
                    os.close(status)
                    os.close(key.fd)


def become(out: int, err: int, status: int) -> None:
    """Have the pipes of the run for outputs, and nothing to read."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(file, number)
        os.close(file)
    os.close(status)


def run(words: list[str], environment: dict[str, str], first: str) -> None:
    """Be a run of the product."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["lodger", *words]
    exec(first, {})  # noqa: S102  a test's own words
    importlib.import_module("lodger.tasks.program").main()


if __name__ == "__main__":
    load()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        wanted = serve(channel)
    try:
        run(**wanted)  # type: ignore[arg-type]  # as Process wrote it
    except Exception:  # noqa: BLE001  as Python itself would
        traceback.print_exc()
        sys.exit(1)
