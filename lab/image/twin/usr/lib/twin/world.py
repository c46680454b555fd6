#!/usr/bin/python3
"""Makes a twin's surroundings from /etc/twin.json: `hardware`, `programs` (not at the first boot), then `neighbours`."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SPEC = json.loads(Path("/etc/twin.json").read_text())
GLUSTER = Path("/data/gluster")
CLOCK = Path("/run/gpu-sim/clock")
USUAL_CLOCK = Path("/var/lib/twin/clock")
SETTLED = Path("/var/lib/twin/settled")
LONG_AGO = 1_700_000_000  # one modification time for all that lies on the shared file system, the same after every boot


def driver() -> None:
    """Load the NVIDIA modules that are on disk, and give simulated engines their control folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=64k", "driver", "/proc/driver"], check=True)
    subprocess.run(["/usr/lib/twin/driver/kernel.py", "coldplug"], check=True)
    CLOCK.parent.mkdir()
    # What starts with the machine starts at once; `neighbours` sets the clock that was asked for.
    CLOCK.write_text("1000\n")


def shared_file_system() -> None:
    """Mount what stands for the colleagues' gluster volume, with their files on it."""
    GLUSTER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "gluster1:/lab", str(GLUSTER)], check=True)
    for project in ("segmentation", "speech"):
        for number in range(4):
            run = GLUSTER / "colleague" / project / f"run-{number}"
            run.mkdir(parents=True)
            (run / "notes.txt").write_text(f"{project}, run {number}: do not delete\n")
            (run / "weights.bin").write_bytes(bytes([number]) * 4096)
            (run / "train.sh").write_text("#!/bin/sh\nexec python3 train.py\n")
            (run / "train.sh").chmod(0o755)
            (run / "weights.bin").chmod(0o640)
    for path in sorted(GLUSTER.rglob("*"), reverse=True):
        os.chown(path, 1001, 1001)
        os.utime(path, (LONG_AGO, LONG_AGO))


def models() -> None:
    """Lay down the model folders; weights are sparse files of the right size."""
    for model in SPEC["models"]:
        folder = Path(SPEC["models_dir"], model["directory"])
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        for name, text in model["files"].items():
            (folder / name).write_text(text)
        for name, size in model["weights"].items():
            with (folder / name).open("wb") as weights:
                header = b'{"__metadata__":{"format":"pt"}}'
                weights.write(len(header).to_bytes(8, "little") + header)
                weights.truncate(size)


def hardware() -> None:
    """Everything that must be there before any service starts."""
    driver()
    shared_file_system()
    models()


def programs() -> None:
    """Wait until the supervised programs have locked their memory: an engine sizes its pools by what is free when it starts."""
    gpus = {str(path.stat().st_ino) for path in Path("/dev").glob("nvidia[0-9]*")}
    end = time.monotonic() + 5
    while time.monotonic() < end:
        held = [line for line in Path("/proc/locks").read_text().splitlines() if line.split()[5].split(":")[2] in gpus]
        if len(held) >= SPEC["locks"]:
            break
        time.sleep(0.05)


def start(command: list[str]) -> None:
    """Run a command of the first boot; one that wants GPUs after the supervised programs have theirs."""
    if "--gpus" in command or "compose" in command:
        programs()
    subprocess.run(command, check=True)


def neighbours() -> None:
    """Start the containers of other people; Docker itself starts them again at later boots. End when they serve."""
    if not SETTLED.exists():
        with ThreadPoolExecutor() as pool:
            list(pool.map(start, SPEC["commands"]))
    for container, url in SPEC["awaited"]:
        state = ["docker", "inspect", "-f", "{{.State.Running}}", container]
        end = time.monotonic() + 10
        while time.monotonic() < end and subprocess.run(state, capture_output=True, check=False).stdout == b"true\n":
            if subprocess.run(["curl", "-sfo", "/dev/null", url], check=False).returncode == 0:
                break
            time.sleep(0.05)
    CLOCK.write_text(USUAL_CLOCK.read_text())
    SETTLED.touch()


{"hardware": hardware, "programs": programs, "neighbours": neighbours}[sys.argv[1]]()
