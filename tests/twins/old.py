"""The product as it was before its modules moved, beside the one under test: what it wrote on hosts must stay readable, both ways."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from lab.run import CHECKOUT, wait_until
from tests.twins.site import Ran, Site

COMMIT = "529fa4c4591e5a1ada715361424aa265de5fc10a"


@dataclass(frozen=True)
class Old:
    """The old product, run by this interpreter against the inventory of ``site``; ``libraries`` has what only it needs."""

    site: Site
    tree: Path
    libraries: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a task and return its process."""
        own = {"PYTHONPATH": f"{self.tree}:{self.libraries}", "LODGER_CHECKOUT": str(self.tree)}
        argv, pipe = [sys.executable, "-m", "lodger.cli", *words], subprocess.PIPE
        environment = {**self.site.environment(), **own}
        return subprocess.Popen(argv, cwd=self.tree, env=environment, stdout=pipe, stderr=pipe, text=True)

    def well(self, *words: str) -> Ran:
        """Run a task that must end with exit 0."""
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        ran = Ran(process.returncode, out, err)
        assert ran.code == 0, str(ran)
        return ran


class Process(Protocol):
    """A run of either product."""

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""

    def kill(self) -> None:
        """End it without a chance to say or do anything."""

    def wait(self) -> int:
        """Wait until it has ended."""
        ...


def killed(process: Process, when: Callable[[], bool], what: str) -> None:
    """Kill a run as soon as ``when()``, which `what` says in words."""
    wait_until(when, what, timeout=120)
    assert process.poll() is None, f"the run had ended before {what}"
    process.kill()
    process.wait()


def unpack(folder: Path) -> Path:
    """Put the old checkout's files into ``folder``; raise AssertionError where git cannot give them.

    Files without git: a shallow clone, as CI has it, could not tell which of two revisions is the later one.
    """
    folder.mkdir()
    if _git("cat-file", "-e", f"{COMMIT}^{{tree}}").returncode:
        fetched = _git("fetch", "--quiet", "--depth=1", "origin", COMMIT)
        assert fetched.returncode == 0, (
            f"the upgrade cannot be tested: this clone has no commit {COMMIT}, and origin did not give it "
            f"({fetched.stderr.decode().strip()}); `git fetch origin {COMMIT}` by hand, or clone with its history"
        )
    archive = _git("archive", COMMIT)
    assert archive.returncode == 0, archive.stderr.decode()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    never_ask = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(["git", "-C", CHECKOUT, *words], capture_output=True, check=False, timeout=120, env=never_ask)


def libraries(tree: Path, folder: Path) -> Path:
    """Put into ``folder`` what the old lock file names and this environment has no longer, in the locked versions."""
    blocks = re.split(r"\n(?=[a-z])", (tree / "requirements.lock").read_text())
    named = {block.partition("==")[0]: block for block in blocks if re.match(r"[a-z0-9._-]+==", block)}
    here = {re.sub(r"[-_.]+", "-", one.name).lower() for one in metadata.distributions()}
    missing = [block for name, block in named.items() if name not in here]
    folder.mkdir()
    if missing:
        lock = folder / "requirements.lock"
        lock.write_text("\n".join(missing))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps", "--require-hashes"]
        done = subprocess.run([*pip, "--target", folder, "-r", lock], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, f"the old checkout's libraries cannot be installed: {done.stderr}"
    return folder
