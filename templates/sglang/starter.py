"""Start a Python module with an API key that no list of processes, environment, container description or log shows.

    python3 starter.py MODULE ARGUMENT...

The key is the last word of the file below. The module finds it among its arguments as `--api-key`, in its own memory only;
where it prints the key (an engine logs all its settings), what comes out of this program says `<key>` instead.
"""

import os
import runpy
import select
import signal
import sys
import time
from pathlib import Path

KEY = Path("/run/lodger/key")
HIDDEN = b"<key>"
GRACE = 1.0  # seconds in which the last lines may still come once the module has ended


def run(module: str, arguments: list[str], key: str) -> None:
    """Run the module in this process, as `python3 -m` would."""
    sys.argv = [module, *arguments, "--api-key", key]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def hide(text: bytes, key: bytes, last: bool) -> tuple[bytes, bytes]:
    """Return what may be printed of `text`, and what has to wait because the key could begin there."""
    text = text.replace(key, HIDDEN)
    for length in range(0 if last else min(len(key) - 1, len(text)), 0, -1):
        if key.startswith(text[-length:]):
            return text[:-length], text[-length:]
    return text, b""


def copy(source: int, key: bytes, child: int) -> int:
    """Print what comes from `source` until the child has ended and all of it came; return how the child ended."""
    rest, status, end = b"", None, float("inf")
    while True:
        ready, _, _ = select.select([source], [], [], GRACE)
        block = os.read(source, 65536) if ready else b""
        shown, rest = hide(rest + block, key, last=not block)
        while shown:
            shown = shown[os.write(1, shown) :]
        if status is None:
            done, found = os.waitpid(child, 0 if ready and not block else os.WNOHANG)
            if done:
                # Processes that the module left behind may go on printing.
                status, end = os.waitstatus_to_exitcode(found), time.monotonic() + GRACE
        if status is not None and (not block or time.monotonic() > end):
            return status


def main() -> int:
    """Start the module in a process of its own, hand signals on to it, and end as it ends."""
    key = KEY.read_text().split()[-1]
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(source)
        os.close(sink)
        run(sys.argv[1], sys.argv[2:], key)
        return 0
    os.close(sink)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(child, received))
    status = copy(source, key.encode(), child)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
