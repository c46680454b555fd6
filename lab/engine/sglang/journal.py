"""Log lines as SGLang prints them: one write a line, so that two processes never mix theirs."""

from __future__ import annotations

import os
import time


def raw(text: str) -> None:
    """Write a line as it is."""
    os.write(1, (text + "\n").encode("utf-8", "replace"))


def line(text: str, rank: str = "") -> None:
    """Write a line with the time, and the rank where several GPUs work together."""
    raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {text}")
