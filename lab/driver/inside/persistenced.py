#!/usr/bin/python3
"""The simulated nvidia-persistenced: keeps every GPU open until it is told to end. It wants the driver of its own version."""

import re
import signal
import sys
from pathlib import Path

VERSION = "@VERSION@"


def main() -> None:
    """Open, say so, wait."""
    loaded = Path("/proc/driver/nvidia/version")
    found = re.search(r"Module\s+(\S+)", loaded.read_text()) if loaded.exists() else None
    if found is None or found[1] != VERSION:
        sys.exit("nvidia-persistenced failed to initialize. Check syslog for more details.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    held = [
        path.open("r+b", buffering=0) for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia(\d+|ctl)", path.name)
    ]
    print(f"Started; {len(held) - 1} GPUs stay initialized", flush=True)
    while True:
        signal.pause()


main()
