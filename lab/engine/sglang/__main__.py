"""`sglang serve ...`, also as `python3 -m sglang serve ...`."""

from __future__ import annotations

import sys

from .launch_server import main

if len(sys.argv) < 2 or sys.argv[1] != "serve":
    print("usage: sglang serve --model-path <model> [options]", file=sys.stderr)
    sys.exit(2)
main(sys.argv[2:], deprecated_entry=False)
