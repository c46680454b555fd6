"""The manual is true: every command in it runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.run import CHECKOUT
from tests.twins.site import Site

_OUTSIDE = ("lab", "pin")  # the session has its own lab, and the real registry is out of reach: each has tests of its own


def commands(name: str, program: str = "./ops") -> list[str]:
    """Return every line of ``program`` in the shell blocks of a document, without its comment."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (CHECKOUT / name).read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


def test_commands_of_the_manual_do_what_it_says(lab: Lab, tmp_path: Path) -> None:
    site = Site(lab, tmp_path)
    ran = 0
    for line in commands("README-ops.md"):
        words = shlex.split(line.replace("/tmp/", f"{tmp_path}/"))[1:]  # noqa: S108  the manual's own example
        if words[0].split(".")[0] not in _OUTSIDE:
            site.well(*words)
            ran += 1
    assert ran >= 7


def test_plain_invoke_runs_the_same_tasks(lab: Lab, tmp_path: Path) -> None:
    site = Site(lab, tmp_path)
    lines = commands("README-ops.md", "invoke")
    assert [shlex.split(line)[1] for line in lines] == ["deploy", "runbook"]
    for line in lines:
        argv = [str(Path(sys.executable).with_name("invoke")), *shlex.split(line)[1:]]
        ran = subprocess.run(argv, cwd=CHECKOUT, env=site.environment(), capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("document", ["README.md", "README-ops.md"])
def test_every_task_that_a_document_names_exists(document: str, lab: Lab, tmp_path: Path) -> None:
    listed = Site(lab, tmp_path).well("--list").out
    for line in commands(document):
        task = next(word for word in shlex.split(line)[1:] if word != "lab")
        assert re.search(rf"^\s+{re.escape(task)}\b", listed, re.MULTILINE), line
