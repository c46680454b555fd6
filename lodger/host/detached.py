"""Commands that outlive their connection."""

from __future__ import annotations

from lodger.host import paths
from lodger.host.command import Command, quote


def detached(name: str, script: str, *, why: str, timeout: float) -> Command:
    """Return the command that runs ``script`` as a unit of its own on the host and waits for it.

    A lost connection does not cut it: the unit goes on, and the next run waits for it before it reads facts. What it
    prints is kept in a file, and printed at its end.
    """
    unit, log = f"{paths.STEP}{name}", f"{paths.VAR}/step-{name}.log"
    start = [
        *("systemd-run", "--quiet", "--collect", "--wait", f"--unit={unit}", f"--property=StandardOutput=file:{log}"),
        *(f"--property=StandardError=file:{log}", "--setenv=LC_ALL=C.UTF-8", "--", "/bin/sh", "-c", script),
    ]
    body = f"mkdir -p {paths.VAR} && rm -f {log}\n{quote(start)}\ncode=$?\ntail -c 20000 {log}\nexit $code"
    return Command(body, why=why, timeout=timeout)
