"""Two kinds of contract: which module may import which, and what stands on hosts already and keeps its name.

A name that stands on a host is read by the next Lodger, and by an earlier one after a rollback of the checkout. A change here
needs a version that both can read.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.host import paths
from lodger.host.facts.docker import HOST_LABEL
from lodger.locks.host_lock import LockOwner
from lodger.plans import runbook
from lodger.release.pauses import Pause
from lodger.release.render import render
from lodger.run.ledger import Ledger
from lodger.run.outcome import RunResult
from lodger.states.registry import states
from lodger.tasks import output

# ---------------------------------------------------------------- who imports whom


def stray(code: Path) -> None:
    (code / "lodger/stray.py").write_text('"""In no room."""\n')


def upward(code: Path) -> None:
    with (code / "lodger/host/paths.py").open("a") as module:
        module.write("\nimport lodger.plans.request\n")


def circle(code: Path) -> None:
    with (code / "lodger/host/command.py").open("a") as module:
        module.write("\nimport lodger.host.paths\n")


def lab_inside(code: Path) -> None:
    with (code / "lodger/errors.py").open("a") as module:
        module.write("\nimport lab.run\n")


@pytest.mark.parametrize(
    ("plant", "broken"),
    [
        (None, ""),
        (stray, "lodger.stray"),
        (upward, "lodger.host.paths -> lodger.plans.request"),
        (circle, "No cycles are allowed in lodger.host"),
        (lab_inside, "lodger never imports the lab BROKEN"),
    ],
)
def test_a_module_in_no_room_an_import_upwards_and_a_circle_are_found(
    plant: Callable[[Path], None] | None, broken: str, tmp_path: Path
) -> None:
    for package in ("lodger", "lab"):
        shutil.copytree(CODE / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CODE / "pyproject.toml", tmp_path)
    if plant:
        plant(tmp_path)
    argv = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (not broken), ran.stdout + ran.stderr
    assert broken in ran.stdout


# ---------------------------------------------------------------- what stands on hosts


def test_files_on_a_host_stay_where_they_are() -> None:
    found = {name: value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)}
    assert found == {
        "PREFIX": "lodger-",
        "STEP": "lodger-step-",
        "ROOT": "/opt/lodger",
        "RELEASES": "/opt/lodger/releases",
        "SERVICES": "/opt/lodger/services",
        "CURRENT": "/opt/lodger/current",
        "HISTORY": "/opt/lodger/history",
        "UNITS": "/etc/systemd/system",
        "VAR": "/var/lib/lodger",
        "LEDGER": "/var/lib/lodger/unfinished.json",
        "LOCK": "/var/lib/lodger/lock",
        "IMAGES": "/var/lib/lodger/images",
        "ETC": "/etc/lodger",
        "KEYS": "/etc/lodger/keys",
        "REMOVE_NO_KEYS": "rmdir --ignore-fail-on-non-empty /etc/lodger/keys /etc/lodger 2>/dev/null; true",
        "PAUSED": "/var/lib/lodger/paused",
        "RETURNS": "/var/lib/lodger/returns",
        "REPLACED": "/var/lib/lodger/replaced",
        "JOURNAL": "/var/lib/lodger/journal",
        "DRIVER_CACHE": "/var/lib/lodger/driver",
        "FETCH": "/var/lib/lodger/fetch",
        "SHARE": "/var/lib/lodger/share",
        "MOTD": "/etc/motd.d",
    }
    assert (paths.pool_lock("p"), paths.key("p", "m")) == ("/var/lib/lodger/lock-p", "/etc/lodger/keys/p.m")
    assert HOST_LABEL == "io.lodger.host"


def test_a_manifest_is_version_1_with_the_keys_that_the_first_had() -> None:
    fleet = inventory.load(CODE / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    release = render(fleet.model_copy(update={"images": images}), fleet.hosts["node1"])
    assert {service.unit for service in release.services} == {f"lodger-{service.name}.service" for service in release.services}
    for service in release.services:
        assert service.manifest().keys() == {
            "name", "kind", "unit", "container", "config", "image", "port", "gpus", "start", "stop", "pool", "listen",
            "identity", "address", "key",
        }  # fmt: skip


def test_records_on_a_host_keep_their_keys() -> None:
    ledger = json.loads(Ledger("r", "deploy", {}, "me", "{}").text())
    assert (ledger["version"], sorted(ledger)) == (
        1, ["acted", "before", "operator", "params", "run", "runbook", "stops", "version"],
    )  # fmt: skip
    assert sorted(json.loads(LockOwner("me", "r", 1, 2, "m").text())) == ["machine", "pid", "run", "started", "user"]
    assert sorted(json.loads(Pause("a").text)) == ["gpus", "since", "until", "waits_for", "who", "worker"]


def test_names_that_a_ledger_holds_are_still_known() -> None:
    assert {path.stem for path in runbook.FOLDER.glob("*.md")} >= {
        "deploy", "driver-upgrade", "pause", "reboot", "resume", "rollback", "router-failover", "weights-move",
    }  # fmt: skip
    assert states().keys() >= {
        "dpkg_free", "driver_installed", "driver_loaded", "gpus_free", "gpus_released", "host_fit", "image_present",
        "key_in_place", "leaver_drained", "neighbour_paused", "neighbour_replaced", "neighbour_restored", "neighbour_resumed",
        "neighbour_told", "neighbour_warned", "old_releases_pruned", "only_driver_changes", "packages_cached", "pool_complete",
        "rebooted", "release_current", "release_staged", "router_ready", "service_gone", "service_installed", "service_stopped",
        "smoke_passed", "upgrade_possible", "weights_present", "worker_drained", "worker_joined", "worker_leaving",
        "worker_paused", "worker_ready", "worker_resumed", "worker_returned", "worker_unpaused",
    }  # fmt: skip


def test_events_of_a_journal_and_keys_of_json_keep_their_names() -> None:
    written = {
        node.args[0].value
        for path in CODE.glob("lodger/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "write"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert written >= {
        "begin", "booted", "check", "command", "connection lost", "end", "evidence", "facts", "intent", "internal error", "kept",
        "lock", "losses", "result", "state", "witness",
    }  # fmt: skip
    assert list(output.as_json(RunResult("h", "deploy"))) == [
        "host", "task", "outcome", "changed", "states", "round_trips", "seconds", "journal",
    ]  # fmt: skip
