"""The product as its operator runs it: `./ops TASK` in a process of its own, against an inventory made from the twins' overlay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lab import judge
from lab.lab import Lab
from lab.run import PATIENCE
from lab.twin import Twin
from tests.twins.product import Process

Snapshot = judge.Snapshot
Fresh = Callable[[str], Twin]  # the fixture `fresh`


@dataclass(frozen=True)
class Ran:
    """How a task ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> list[dict[str, Any]]:
        """The JSON array on standard output."""
        found: list[dict[str, Any]] = json.loads(self.out)
        return found

    @property
    def one(self) -> dict[str, Any]:
        """The object of the only host."""
        (found,) = self.data
        return found

    def states(self) -> dict[str, str]:
        """State -> outcome; of a state that was done and undone the last word."""
        return {state["name"]: state["outcome"] for state in self.one["states"]}

    def __str__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Site:
    """An inventory of its own, a copy of the twins' overlay, and the tasks run against it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.hosts = folder / "hosts"
        self.journal = folder / "journal"
        shutil.copytree(lab.overlay, self.hosts)

    def edit(self, name: str, change: Callable[[Any], None]) -> None:
        """Change the document `<name>.yml` of this inventory in place."""
        yaml = YAML()
        yaml.preserve_quotes = True  # or a machine-id that begins with 0 would be no text any more
        path = self.hosts / f"{name}.yml"
        data = yaml.load(path.read_text())
        change(data)
        with path.open("w") as file:
            yaml.dump(data, file)

    def pool(self, *, allow: str = "", **settings: Any) -> None:
        """Change settings of the pool; None removes one. `allow` is the lint rule that would refuse them."""

        def change(fleet: Any) -> None:
            for name, value in settings.items():
                if value is None:
                    del fleet["pools"]["qwen38"][name]
                else:
                    fleet["pools"]["qwen38"][name] = value
            if allow:
                fleet["pools"].yaml_set_comment_before_after_key("qwen38", before=f"allow {allow}: to see it fail", indent=2)

        self.edit("fleet", change)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LODGER_HOSTS": str(self.hosts), "LODGER_JOURNAL": str(self.journal)}

    def start(self, *words: str, first: str = "") -> Process:
        """Start a task and return its process; ``first`` is Python that it runs before, to shorten a wait or to plant a mistake."""
        return Process(words, self.environment(), first)

    def ops(self, *words: str, timeout: float = PATIENCE, first: str = "") -> Ran:
        """Run a task to its end; ``first`` as in :meth:`start`."""
        process = self.start(*words, first=first)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{words} did not end within {timeout} s\n{out}\n{err}") from None
        return Ran(process.returncode, out, err)

    def well(self, *words: str) -> Ran:
        """Run a task that must end with exit 0."""
        ran = self.ops(*words)
        assert ran.code == 0, str(ran)
        return ran


def serves(twin: Twin, port: int, *, patience: float = PATIENCE) -> bool:
    """Whether an engine answers at a port of the twin, as one of its own users would see it."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if twin.exec(["curl", "-sf", "-m", "60", f"http://127.0.0.1:{port}/health"], check=False).returncode == 0:
            return True
        time.sleep(0.5)
    return False


def declared(twin: Twin, name: str) -> str:
    """Return the configuration that runs in a container of ours, by its label; nothing when it does not run."""
    form = '{{if .State.Running}}{{index .Config.Labels "io.lodger.config"}}{{end}}'
    return twin.exec(["docker", "inspect", "-f", form, name], check=False).stdout.strip()


def ready(lab: Lab, name: str) -> Twin:
    """Give a twin that is up, as it stands; `up`, which looks at everything of the lab, only when some twin is not running."""
    if set(lab.status().values()) != {"running"}:
        lab.up()
    twin = lab.twin(name)
    twin.wait_ready()
    return twin


def others_deployed(lab: Lab, name: str) -> list[str]:
    """Return the other hosts that have something of ours: it would be of the same pool, and have a say in it."""
    return [other for other in lab.names if other != name and deployed(lab.twin(other))]


def begin(lab: Lab, used: set[str], wanted: Collection[str]) -> None:
    """Have the ``wanted`` twins as they were at first, and nothing of ours on the others; ``used`` are those that may not be so."""
    if set(lab.status().values()) != {"running"}:
        lab.up()
    left = {name for name in used - set(wanted) if deployed(lab.twin(name))}
    lab.reset(used & set(wanted) | left)
    used.update(lab.names)


def deployed(twin: Twin) -> bool:
    """Whether a twin has something of ours."""
    return twin.exec("test -e /opt/lodger", check=False).returncode == 0


def loaded_driver(twin: Twin) -> str:
    """Return the version of the module in the kernel, nothing when there is none."""
    script = "sed -n 's/^NVRM version.*Kernel Module *\\([0-9.]*\\) .*/\\1/p' /proc/driver/nvidia/version"
    return twin.exec(script, check=False).stdout.strip()


# The seed's predecessors, which the inventory lets a deploy replace: everything of theirs may differ.
REPLACED = {
    "node1": frozenset({("container", "qwen38-fp8-sglang")}),
    "node2": frozenset(
        {("unit", "vllm-qwen.service"), ("file", "/etc/systemd/system/multi-user.target.wants/vllm-qwen.service")}
    ),
}


def foreign_changes(before: Snapshot, after: Snapshot, replaced: frozenset[tuple[str, str]] = frozenset()) -> list[str]:
    """Return what the judge holds against the run, apart from the neighbours that it was told to replace.

    With them go their GPU processes and the port that our worker takes over.
    """
    theirs = {"gpu", "port"} if replaced else set()

    def expected(kind: str, name: str) -> bool:
        return (kind, name) in replaced or kind in theirs

    return judge.difference(before, after, expected=expected)


def given_back(before: Snapshot, after: Snapshot, host: str) -> list[str]:
    """Return what the judge holds against a run after which the host should be as before, its replaced neighbours running again."""
    return judge.difference(
        before,
        after,
        expected=lambda kind, _: kind == "gpu",
        restarted=lambda kind, name: (kind, name) in REPLACED[host],
    )
