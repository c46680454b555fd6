"""What the shell states of router-failover.md ask, with a router and a network of our own."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.plans import runbook
from lodger.release.render import render, worker_urls

WORKERS = ("http://10.0.0.1:30000", "http://10.0.0.2:30000", "http://10.0.0.2:30001")


@pytest.mark.parametrize(
    ("listed", "serves", "complete"),
    [
        (dict.fromkeys(WORKERS, True), WORKERS, True),
        (dict.fromkeys(WORKERS[:1], True), WORKERS, False),
        (dict.fromkeys(WORKERS[:1], True), WORKERS[:1], True),
        ({WORKERS[0]: True, WORKERS[1]: True, WORKERS[2]: False}, WORKERS, False),
        ({WORKERS[0]: True, WORKERS[1]: True, WORKERS[2]: False}, WORKERS[:2], True),
        (dict.fromkeys(WORKERS[:2], True), WORKERS[:2], True),
        ({}, WORKERS[2:], False),
    ],
)
def test_a_standby_is_complete_with_every_worker_of_its_file_that_serves(
    listed: dict[str, bool], serves: Sequence[str], complete: bool, tmp_path: Path
) -> None:
    """The words are those of the real router, which lists nobody that it still waits for."""
    fleet = inventory.load(CODE / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    release = render(fleet.model_copy(update={"images": images}), fleet.hosts["node2"])
    (compose,) = [file.content for file in release.files if file.path == "router/compose.yml"]
    for old, new in zip(worker_urls(fleet, fleet.hosts["node2"], "qwen38"), WORKERS, strict=True):
        assert compose.count(f'"{old}"') == 1
        compose = compose.replace(f'"{old}"', f'"{new}"')
    (tmp_path / "compose.yml").write_text(compose)
    said = [
        f'{{"id":"{url}","url":"{url}","priority":50,"is_healthy":{str(well).lower()},"load":0}}'
        for url, well in listed.items()
    ]
    (tmp_path / "workers").write_text(f'{{"workers":[{",".join(said)}],"total":{len(said)}}}')
    for name, body in {
        "docker": "echo 30002 qwen38",
        "curl": f"""for url; do :; done
case $url in
http://127.0.0.1:30002/workers) cat {tmp_path}/workers;;
{"|".join(f"{url}/health" for url in serves)}) ;;
*) exit 22;;
esac""",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (block,) = [block for block in runbook.load("router-failover").blocks if block.names == ("standby_complete",)]
    path = f"{tmp_path}:/usr/bin:/bin"
    for script in ("check", "run"):
        text = block.shell[script].replace("/opt/lodger/services/router", str(tmp_path)).replace("+ 30)", "+ 1)")
        done = subprocess.run(["sh", "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode == 0) == complete, (script, done.stderr)
