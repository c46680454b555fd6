"""Witnesses see the host that they were given, nothing else, and say what they saw."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lodger.checkout import CODE
from lodger.errors import ConnectionLost, UsageError
from lodger.host.command import Command, Result
from lodger.inventory import Fleet
from lodger.inventory.load import load
from lodger.run import witness

ROOT = CODE


@dataclass
class Told:
    """A transport whose host answers every command with its own name; it can lose its connection."""

    host: str
    lost_after: int = 10_000
    heard: list[Command] = field(default_factory=list)

    def run(self, command: Command) -> Result:
        self.heard.append(command)
        if len(self.heard) > self.lost_after:
            raise ConnectionLost("the connection ended", host=self.host)
        return Result(command, 0, f"{self.host}\n", "", 0.01)

    @contextlib.contextmanager
    def forward(self, address: str, port: int) -> Iterator[int]:
        raise NotImplementedError(f"no witness forwards a port ({address}:{port})")
        yield 0


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return load(ROOT / "hosts")


def spec(folder: Path, text: str, name: str = "test_spec.py") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def test_each_test_is_told_with_its_name_its_outcome_and_the_reason(tmp_path: Path, fleet: Fleet) -> None:
    file = spec(
        tmp_path,
        """
        def test_agrees(host, fleet, inventory_host, params):
            assert host.check_output("hostname") == "node1"
            assert fleet.hosts[inventory_host.name] is inventory_host
            assert params == {"release": "abc"}

        def test_disagrees(host):
            assert host.check_output("hostname") == "node7", "another machine"
        """,
    )
    told = Told("node1")
    good, bad = witness.run_witnesses([file], told, fleet, fleet.hosts["node1"], {"release": "abc"})
    assert (good.nodeid, good.passed, good.message) == ("test_spec.py::test_agrees", True, "")
    assert (bad.nodeid, bad.passed) == ("test_spec.py::test_disagrees", False)
    assert "another machine" in bad.message
    assert "Traceback" not in bad.message
    assert [(command.script, command.sudo) for command in told.heard] == [("hostname", True)] * 2


def test_arguments_are_quoted_into_the_command(tmp_path: Path, fleet: Fleet) -> None:
    file = spec(tmp_path, 'def test_it(host):\n    host.run("stat %s", "a b; rm -rf $HOME")\n')
    told = Told("node1")
    witness.run_witnesses([file], told, fleet, fleet.hosts["node1"])
    assert told.heard[0].script == "stat 'a b; rm -rf $HOME'"


def test_a_test_runs_once_for_each_worker(tmp_path: Path, fleet: Fleet) -> None:
    file = spec(tmp_path, "def test_it(worker_name, inventory_host):\n    assert worker_name in inventory_host.workers\n")
    seen = witness.run_witnesses([file], Told("node2"), fleet, fleet.hosts["node2"])
    assert [(one.nodeid, one.passed) for one in seen] == [
        ("test_spec.py::test_it[a]", True),
        ("test_spec.py::test_it[b]", True),
    ]


def test_only_the_named_workers_and_neighbours_are_looked_at(tmp_path: Path, fleet: Fleet) -> None:
    file = spec(tmp_path, "def test_it(worker_name): pass\ndef test_other(neighbour_name): pass\n")
    names = {"workers": ["b"], "neighbours": []}
    one, other = witness.run_witnesses([file], Told("node2"), fleet, fleet.hosts["node2"], names)
    assert (one.nodeid, one.passed) == ("test_spec.py::test_it[b]", True)
    assert not other.passed, "asked about no neighbour at all, it saw nothing"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import pytest\ndef test_it(host):\n    pytest.skip('not today')\n", "not today"),
        ("def helper():\n    pass\n", "none of its tests ran"),
        ("import no_such_module\n", "no_such_module"),
        ("def test_it(no_such_fixture):\n    pass\n", "no_such_fixture"),
        (
            "import pytest\n@pytest.fixture\ndef broken(host):\n    raise OSError('gone')\ndef test_it(broken):\n    pass\n",
            "gone",
        ),
    ],
    ids=["skipped", "empty", "unimportable", "unknown fixture", "fixture fails"],
)
def test_a_witness_that_saw_nothing_does_not_agree(tmp_path: Path, fleet: Fleet, text: str, reason: str) -> None:
    (seen,) = witness.run_witnesses([spec(tmp_path, text)], Told("node1"), fleet, fleet.hosts["node1"])
    assert not seen.passed
    assert reason in seen.message


def test_a_lost_connection_ends_the_run_and_is_no_verdict(tmp_path: Path, fleet: Fleet) -> None:
    file = spec(tmp_path, "def test_a(host):\n    host.run('a')\ndef test_b(host):\n    host.run('b')\n")
    told = Told("node1", lost_after=0)
    with pytest.raises(ConnectionLost):
        witness.run_witnesses([file], told, fleet, fleet.hosts["node1"])
    assert [command.script for command in told.heard] == ["a"], "nothing is tried on a connection that is lost"


def test_an_interrupt_is_not_taken_for_a_verdict(tmp_path: Path, fleet: Fleet) -> None:
    file = spec(tmp_path, "def test_it(host):\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        witness.run_witnesses([file], Told("node1"), fleet, fleet.hosts["node1"])


def test_a_missing_file_is_refused_before_anything_runs(tmp_path: Path, fleet: Fleet) -> None:
    told = Told("node1")
    with pytest.raises(UsageError, match="no_such"):
        witness.run_witnesses([tmp_path / "no_such.py"], told, fleet, fleet.hosts["node1"])
    assert told.heard == []


def test_hosts_verified_side_by_side_do_not_mix(tmp_path: Path, fleet: Fleet) -> None:
    texts = {
        name: f"def test_it(host, inventory_host):\n    assert host.check_output('x') == inventory_host.name == '{name}'\n"
        for name in ("node1", "node2")
    }
    files = {name: spec(tmp_path / name, text) for name, text in texts.items()}  # the same file name in two folders

    def verify(name: str) -> list[witness.Witnessed]:
        return witness.run_witnesses([files[name]], Told(name), fleet, fleet.hosts[name])

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(verify, ["node1", "node2"] * 4))
    assert [[one.passed for one in outcome] for outcome in outcomes] == [[True]] * 8


def test_it_is_silent_and_leaves_the_process_as_it_was(
    tmp_path: Path, fleet: Fleet, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    before, modules = dict(os.environ), set(sys.modules)
    file = spec(tmp_path, "def test_it(host):\n    assert host.check_output('x') == 'else'\n", name="test_quiet.py")
    witness.run_witnesses([file], Told("node1"), fleet, fleet.hosts["node1"])
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == before
    assert not [name for name in set(sys.modules) - modules if "test_quiet" in name]


def test_testinfras_own_plugin_never_gives_a_spec_the_local_machine(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_PLUGINS", "testinfra.plugin")
    file = spec(tmp_path, "def test_it(host):\n    assert host.backend.NAME == 'lodger'\n    host.run('touch %s', 'here')\n")
    (seen,) = witness.run_witnesses([file], Told("node1"), fleet, fleet.hosts["node1"])
    assert seen.passed, seen.message


def pytest_on(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_shipped_specs_without_a_host_fail_loudly_and_look_at_nothing(tmp_path: Path) -> None:
    trap = tmp_path / "bin"
    trap.mkdir()
    for program in ("sh", "systemctl", "docker", "nvidia-smi", "curl", "cat", "find"):
        (trap / program).write_text(f"#!/bin/bash\n: > {tmp_path}/looked\n")
        (trap / program).chmod(0o755)
    done = pytest_on("tests/host", PATH=f"{trap}:{os.environ['PATH']}")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "a witness needs a host" in done.stdout
    assert "passed" not in done.stdout
    assert "skipped" not in done.stdout
    assert [path.name for path in witness.SPECS.glob("test_*.py") if f"tests/host/{path.name}::" not in done.stdout] == []
    assert not (tmp_path / "looked").exists()


def test_the_whole_suite_passes_the_specs_over() -> None:
    others = [f"--ignore={path}" for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "host"]
    done = pytest_on("--co", "tests", *others)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_a_host_is_looked_at_for_what_it_has(fleet: Fleet) -> None:
    of_both = [[path.name for path in witness.specs_for(fleet.hosts[name])] for name in ("node1", "node2")]
    assert ["test_router.py" in names for names in of_both] == [False, True]
    assert all({"test_worker.py", "test_neighbours.py", "test_release.py"} <= set(names) for names in of_both)
    bare = fleet.hosts["node1"].model_copy(update={"workers": {}, "neighbours": {}})
    assert [path.name for path in witness.specs_for(bare)] == ["test_driver.py", "test_release.py", "test_guest.py"]
    assert all(path.is_file() for name in ("node1", "node2") for path in witness.specs_for(fleet.hosts[name]))


@pytest.mark.parametrize("path", sorted(witness.SPECS.glob("*.py")), ids=lambda path: path.name)
def test_a_spec_imports_nothing_of_lodger_but_the_inventory(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {name for name in imported if name.split(".")[0] in ("lodger", "lab")} <= {"lodger.inventory"}
