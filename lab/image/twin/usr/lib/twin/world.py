"""Makes a twin's surroundings from /etc/twin.json: `hardware`, `programs` (not at the first boot), then `neighbours`."""

import json
import os
import socket
import subprocess
import sys
import time
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
    subprocess.run(["/usr/lib/twin/driver/kernel", "coldplug"], check=True)
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
    for moment in range(1200 if gpus else 0):
        held = [line for line in Path("/proc/locks").read_text().splitlines() if line.split()[5].split(":")[2] in gpus]
        if len(held) >= SPEC["locks"] or (moment % 40 == 39 and not wanted()):
            break
        time.sleep(0.05)


def wanted() -> bool:
    """Whether a supervised program runs or is about to; one that has given up will not take its memory."""
    said = subprocess.run(["supervisorctl", "status"], capture_output=True, text=True, check=False).stdout
    return any(state in said for state in ("RUNNING", "STARTING", "BACKOFF"))


def start(commands: list[list[str]]) -> None:
    """Run the commands of the first boot side by side, those that want GPUs when the supervised programs have theirs."""
    running = [subprocess.Popen(command) for command in commands if not wants_gpus(command)]
    programs()
    running += [subprocess.Popen(command) for command in commands if wants_gpus(command)]
    ended = [process.wait() for process in running]
    if any(ended):
        sys.exit("a container of somebody else does not start")


def wants_gpus(command: list[str]) -> bool:
    """Whether it may be about the GPUs."""
    return "--gpus" in command or "compose" in command


def neighbours() -> None:
    """Start the containers of other people; Docker itself starts them again at later boots. End when they serve."""
    if not SETTLED.exists():
        start(SPEC["commands"])
    for container, port in SPEC["awaited"]:
        state = ["docker", "inspect", "-f", "{{.State.Running}}", container]
        for moment in range(1200):
            if answers(port) or (
                moment % 20 == 19 and subprocess.run(state, capture_output=True, check=False).stdout != b"true\n"
            ):
                break
            time.sleep(0.05)
    CLOCK.write_text(USUAL_CLOCK.read_text())
    SETTLED.touch()


def answers(port: int) -> bool:
    """Whether an engine says that it is well."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(100)
    except OSError:
        return False


def main() -> None:
    """Do what was asked for."""
    {"hardware": hardware, "programs": programs, "neighbours": neighbours}[sys.argv[1]]()
