"""Witnesses: testinfra specs that check one host over its open connection.

They are a second opinion: the specs below ``tests/host`` import no state and check by other means. Import this module
late: pytest and testinfra are slow to import.

``pytest.main`` is not re-entrant: it changes ``sys.modules``, warnings and the environment of the process. So when several
hosts are verified at once, their witnesses run one after the other (a lock). A process for each host would need the open
connection; and the witnesses of a host take a second or two.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.host import Host as TestinfraHost

from lodger.checkout import CODE
from lodger.errors import ConnectionFailed, UsageError
from lodger.host.command import Command, Transport
from lodger.inventory import Fleet, Host

SPECS = CODE / "tests" / "host"

_TURN = threading.Lock()
_COMMAND_TIMEOUT = 60.0
_MESSAGE_LINES = 6
_MESSAGE_LENGTH = 800
# How testinfra prints a command that failed.
_COMMAND_RESULT = re.compile(
    r"CommandResult\(backend=<[^>]*>, exit_status=\d+, command=b(['\"])(.*?)\1, _stdout=(.*?), _stderr=(.*?)\)$", re.MULTILINE
)


@dataclass(frozen=True)
class Witnessed:
    """The result of one witness: ``message`` is why it disagrees, "" when it agrees; ``seconds`` is how long it took."""

    nodeid: str
    passed: bool
    message: str
    seconds: float


def specs_for(host: Host, paused: Collection[str] = ()) -> list[Path]:
    """Return the specs that apply to ``host``, in the best order to read.

    ``paused`` names the paused workers: another spec checks those.
    """
    names = ["test_driver.py", "test_release.py", "test_guest.py"]
    names += ["test_worker.py"] if host.workers.keys() - set(paused) else []
    names += ["test_paused.py"] if paused else []
    names += ["test_router.py"] if host.router else []
    names += ["test_neighbours.py"] if host.neighbours else []
    return [SPECS / name for name in names]


def run_witnesses(
    files: Sequence[Path], transport: Transport, fleet: Fleet, host: Host, params: Mapping[str, Any] | None = None
) -> list[Witnessed]:
    """Run the specs in ``files`` against the host behind ``transport``; return the result of each of their tests.

    A spec gets the fixtures ``host`` (testinfra's, every command as root), ``fleet``, ``inventory_host`` and ``params``;
    ``worker_name``, ``paused_name`` and ``neighbour_name`` make a test run once for each of the host's workers or neighbours,
    or for those named in the parameters ``workers``, ``paused`` and ``neighbours``: in the middle of a deploy not all of them
    are up. Nothing is printed. A skipped test and a file without tests count as disagreement: they saw nothing.

    Raises UsageError for a file that is not there, and the ConnectionFailed that ended the connection half way.
    """
    for file in files:
        if not file.is_file():
            raise UsageError(f"there is no witness {file}", hint="`witness:` names files below tests/host, or full paths")
    if not files:
        return []
    backend = TransportBackend(transport)
    params = dict(params or {})
    fixtures = _fixtures({"host": TestinfraHost(backend), "fleet": fleet, "inventory_host": host, "params": params})
    recorder = _Recorder(
        {
            "worker_name": list(params.get("workers", host.workers)),
            "paused_name": list(params.get("paused", host.workers)),
            "neighbour_name": list(params.get("neighbours", host.neighbours)),
        }
    )
    with _TURN, _left_as_found(files):
        code = pytest.main([*_arguments(files), *map(str, files)], plugins=[fixtures, recorder])
    if backend.lost:
        raise backend.lost
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    heard = {witnessed.nodeid.split("::")[0] for witnessed in recorder.witnessed}
    silent = [file.name for file in files if file.name not in heard]
    return recorder.witnessed + [Witnessed(name, False, "none of its tests ran", 0.0) for name in silent]


class TransportBackend(BaseBackend):  # type: ignore[misc]  # testinfra ships no types
    """A testinfra backend over a connection that is already open. Every command runs as root."""

    NAME = "lodger"

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport.host)
        self._transport = transport
        self.lost: ConnectionFailed | None = None

    def run(self, command: str, *args: str, **_: Any) -> CommandResult:
        """Run ``command`` with ``args`` quoted into it; any exit code is accepted, the spec judges it."""
        if self.lost:
            raise self.lost
        script = self.get_command(command, *args)
        try:
            done = self._transport.run(
                Command(script, why="read as a witness", sudo=True, timeout=_COMMAND_TIMEOUT, ok=tuple(range(256)))
            )
        except ConnectionFailed as lost:
            self.lost = lost
            raise
        return self.result(done.code, script.encode(), done.stdout, done.stderr)


def _fixtures(values: Mapping[str, object]) -> ModuleType:
    """Return a pytest plugin that gives each of ``values`` as a fixture of that name."""
    plugin = ModuleType("lodger_witness_fixtures")
    for name, value in values.items():
        setattr(plugin, name, pytest.fixture(scope="session", name=name)(lambda value=value: value))
    return plugin


class _Recorder:
    """Runs specs once for each worker or neighbour that they use, and records what pytest reports."""

    def __init__(self, names: Mapping[str, list[str]]) -> None:
        self._names = names
        self.witnessed: list[Witnessed] = []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for fixture, names in self._names.items():
            if fixture in metafunc.fixturenames:
                metafunc.parametrize(fixture, names, scope="module")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._take_down(report, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._take_down(report, 0.0)

    def _take_down(self, report: pytest.TestReport | pytest.CollectReport, seconds: float) -> None:
        file, *rest = report.nodeid.split("::")
        nodeid = "::".join([Path(file).name, *rest])
        self.witnessed.append(Witnessed(nodeid, report.passed, "" if report.passed else _message(report), seconds))


def _arguments(files: Sequence[Path]) -> list[str]:
    # No configuration, conftest or plugin from outside is used; nothing is written, printed or captured (capturing would
    # hide what the threads of other hosts print meanwhile). testinfra's own plugin must never load: with it, a spec without
    # a host checks the local machine and agrees.
    unwanted = ("testinfra", "terminal", "cacheprovider", "faulthandler", "logging", "threadexception", "unraisableexception")
    root = os.path.commonpath([file.resolve().parent for file in files])
    off = [word for plugin in (*unwanted, "warnings") for word in ("-p", f"no:{plugin}")]
    return [
        *off, "--disable-plugin-autoload", "--noconftest", "--import-mode=importlib", "--capture=no",
        "--continue-on-collection-errors", "-c", os.devnull, f"--rootdir={root}",
    ]  # fmt: skip


@contextmanager
def _left_as_found(files: Sequence[Path]) -> Iterator[None]:
    """Remove what pytest leaves in this process: the specs as modules, and its variables in the environment."""
    marks = ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTEST_PLUGINS")
    before = {mark: os.environ.pop(mark) for mark in marks if mark in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
        ours = {str(file.resolve()) for file in files}
        for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) in ours]:
            del sys.modules[name]


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test did not pass: the assertion or error itself, without the traceback."""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        return f"it was skipped, so it saw nothing ({reason})"
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash else report.longrepr).removeprefix("AssertionError: ")
    text = _COMMAND_RESULT.sub(r"`\2` \3 \4", text)
    lines = [line for line in text.splitlines() if line.strip() and "Use -v to get" not in line]
    return "\n".join(lines[:_MESSAGE_LINES] if crash else lines[-_MESSAGE_LINES:])[:_MESSAGE_LENGTH]
