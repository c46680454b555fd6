"""Nix without a network: flakes evaluated and built against the stand-in for nixpkgs, in a store of the test's own."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from lab import system
from lab.run import CHECKOUT, PATIENCE

HERE = Path(__file__).parent
NEEDED = {"nix": "nix-bin"}
# Builds run unconfined, as whoever runs the test: what is built here only copies files and calls programs of the machine.
_SETTINGS = """\
experimental-features = nix-command flakes
substitute = false
flake-registry =
sandbox = false
build-users-group =
"""


class Nix:
    """The evaluator of this machine with a folder for everything that it writes; nix-bin is installed where that is possible."""

    def __init__(self, root: Path) -> None:
        system.install(NEEDED)
        folders = {f"NIX_{name.upper()}_DIR": name for name in ("store", "state", "log", "conf")} | {"HOME": "home"}
        for name in folders.values():
            (root / name).mkdir(parents=True)
        (root / "conf" / "nix.conf").write_text(_SETTINGS)
        self._environment = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            **{variable: str(root / name) for variable, name in folders.items()},
        }
        self._nixpkgs = shutil.copytree(HERE / "nixpkgs", root / "nixpkgs")
        found = {
            "bash": shutil.which("bash"),
            "path": os.defpath.removeprefix(":"),
            "bin": sysconfig.get_path("scripts"),
            "python": getattr(sys, "_base_executable", sys.executable),
            "site": sysconfig.get_path("purelib"),
        }
        values = "".join(f"  {name} = {json.dumps(value)};\n" for name, value in found.items())
        (self._nixpkgs / "machine.nix").write_text("{\n" + values + "}\n")
        self.system = str(self.json("eval", "--impure", "--expr", "builtins.currentSystem"))

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `nix` and return how it ended."""
        command, folder = ["nix", "--offline", *words], cwd or self._nixpkgs
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder
        )

    def on(self, verb: str, flake: Path, attribute: str = "", *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb (``flake check``) on a flake, in its folder, with nixpkgs replaced by the stand-in."""
        override = ["--override-input", "nixpkgs", f"path:{self._nixpkgs}", "--no-write-lock-file"]
        return self.run(*verb.split(), f"path:{flake}{attribute}", *override, *words, cwd=flake)

    def json(self, *words: str) -> Any:
        """Return what `nix ... --json` prints."""
        return self._parsed(self.run(*words, "--json"))

    def json_on(self, verb: str, flake: Path, attribute: str = "", *words: str) -> Any:
        """Return what a verb prints about a flake with --json."""
        return self._parsed(self.on(verb, flake, attribute, *words, "--json"))

    def every_system(self) -> list[str]:
        """Return the option that newer versions need to look at other systems than this one, which 2.8 always does."""
        version = tuple(int(part) for part in self.run("--version").stdout.split()[-1].split(".")[:2])
        return ["--all-systems"] if version >= (2, 14) else []

    @staticmethod
    def _parsed(done: subprocess.CompletedProcess[str]) -> Any:
        if done.returncode:
            raise NixError(done.stderr)
        return json.loads(done.stdout)


class NixError(RuntimeError):
    """Nix refused; the text is what it said."""


def call(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call a program in a folder, as somebody would who has nothing else of Lodger."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        [program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def checkout(target: Path, *only: str) -> Path:
    """Copy the checkout's own files (those that git would, or could, track) to ``target`` and return it."""
    listed = ["git", "-C", str(CHECKOUT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *only]
    names = subprocess.run(listed, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.split("\0")
    for name in filter(None, names):
        if (CHECKOUT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target / name)
    return target
