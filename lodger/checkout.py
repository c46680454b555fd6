"""The checkout that a run works on, and what git says of it: its revision, and whether it contains another."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

# An installed Lodger keeps its code elsewhere: there the variable names the folder with hosts/, journal/ and the history.
CODE = Path(__file__).resolve().parent.parent
"""Where this code lies, and beside it its templates, runbooks, witnesses and shipped inventory."""
ROOT = Path(os.environ.get("LODGER_CHECKOUT") or CODE).resolve()
UNKNOWN = "unknown"
_DIRTY = "-dirty"


def revision(root: Path = ROOT) -> str:
    """Return the commit of the checkout, with ``-dirty`` when files differ from it; ``unknown`` outside git."""
    said = _git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    found = re.match(r"# branch\.oid ([0-9a-f]+)$", said or "", re.MULTILINE)
    if found is None:
        return UNKNOWN
    return found[1] + (_DIRTY if re.search(r"^[^#]", said or "", re.MULTILINE) else "")


def contains(deployed: str, root: Path = ROOT) -> bool:
    """Return whether the checkout is at ``deployed`` or later; a revision nobody knows counts as contained."""
    commit = deployed.removesuffix(_DIRTY)
    return commit == UNKNOWN or _git(root, "merge-base", "--is-ancestor", commit, "HEAD") is not None


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, None when it fails or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
