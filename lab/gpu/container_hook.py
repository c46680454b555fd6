#!/usr/bin/python3
"""The simulated container hook: dockerd calls it before the first process of a container that asked for GPUs.

It refuses an image that needs a newer CUDA than the driver has, and mounts the visible devices into the container. The OCI
state comes on stdin; what is printed on stderr reaches the user of `docker run`.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

CONTROL = Path("/run/gpu-sim")
PROGRAMS = Path(__file__).parent  # what nvidia-smi is a part of
LIBRARIES = tuple(Path("/usr/lib/x86_64-linux-gnu", name) for name in ("libnvidia-ml.so.1", "libcuda.so.1"))
COMPARE = {
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
# Runs inside the container's mount namespace, where the twin's own tree is still in sight beside the new root. A link is made
# anew, for it names the version that is mounted.
MOUNT = """
set -e
root=$1; shift
while [ $# -gt 0 ]; do
    [ -e "$1" ] || { shift; continue; }
    target=$root$1
    if [ -L "$1" ]; then mkdir -p "${target%/*}"; ln -sfn "$(readlink "$1")" "$target"; shift; continue; fi
    if [ -d "$1" ]; then mkdir -p "$target"; else mkdir -p "${target%/*}"; [ -e "$target" ] || : > "$target"; fi
    mount --bind "$1" "$target"
    case $1 in /dev/*) ;; *) mount -o remount,bind,ro "$target" ;; esac
    shift
done
"""


def fail(message: str) -> NoReturn:
    """End as nvidia-container-cli does."""
    sys.exit(f"nvidia-container-cli: {message}: unknown")


def version(text: str) -> list[int]:
    """Return a version as numbers that compare."""
    return [int(part) for part in re.findall(r"\d+", text)]


def unmet(requirement: str, have: Mapping[str, str]) -> str | None:
    """Return the first condition that no alternative of a NVIDIA_REQUIRE_* value gets round, or None."""
    first = None
    for alternative in requirement.split():
        name, missing = "", None
        for condition in alternative.split(","):
            part = re.fullmatch(r"([a-z]*)(>=|<=|!=|>|<|=)(.+)", condition)
            if not part:
                continue
            name = part[1] or name
            mine = have.get(name, "")
            if name in ("cuda", "driver"):
                holds = COMPARE[part[2]](version(mine), version(part[3]))
            else:
                holds = COMPARE[part[2]](mine in part[3].split("|"), True)
            if not holds:
                missing = missing or condition
        if missing is None:
            return None
        first = first or missing
    return first


def check_library(driver: str) -> None:
    """End unless the library on the host is that of the loaded driver."""
    library = LIBRARIES[0]
    if not library.is_symlink():
        missing = "cannot open shared object file: no such file or directory"
        fail(f"initialization error: load library failed: {library.name}: {missing}")
    if library.readlink().name != f"libnvidia-ml.so.{driver}":
        fail("initialization error: nvml error: driver/library version mismatch")


def main() -> None:
    """Check the image's requirements, then mount."""
    if sys.argv[1:] != ["prestart"]:
        return
    state = json.load(sys.stdin)
    bundle = Path(state["bundle"] if "bundle" in state else state["bundlePath"])
    config = json.loads((bundle / "config.json").read_text())
    env = dict(item.partition("=")[::2] for item in config["process"].get("env", []))
    asked = env.get("NVIDIA_VISIBLE_DEVICES", "void")
    if asked in ("", "void"):
        return
    devices = {}
    for path in Path("/dev").glob("nvidia[0-9]*"):
        devices[int(path.name[6:])] = json.loads(path.read_text().splitlines()[0])
    if not devices:
        fail("initialization error: nvml error: driver not loaded")
    loaded = next(iter(devices.values()))
    check_library(loaded["driver"])
    if env.get("NVIDIA_DISABLE_REQUIRE", "").lower() not in ("1", "true"):
        have = {"cuda": loaded["cuda"], "driver": loaded["driver"], "brand": "geforce", "arch": loaded["compute_capability"]}
        for name, value in env.items():
            condition = unmet(value, have) if name.startswith("NVIDIA_REQUIRE_") else None
            if condition:
                fail(
                    f"requirement error: unsatisfied condition: {condition}, please update your driver to a newer version, "
                    "or use an earlier cuda container"
                )
    chosen = []
    if asked != "none":
        names = {str(i): i for i in devices} | {d["uuid"]: i for i, d in devices.items()}
        for word in map(str, devices) if asked == "all" else asked.split(","):
            if word not in names:
                fail(f"device error: {word}: unknown device")
            chosen.append(f"/dev/nvidia{names[word]}")
    root = Path(config["root"]["path"])
    root = root if root.is_absolute() else bundle / root
    libraries = [str(path) for link in LIBRARIES if link.is_symlink() for path in (link, link.parent / link.readlink())]
    wanted = [*chosen, "/dev/nvidiactl", "/dev/nvidia-uvm", "/usr/bin/nvidia-smi", str(PROGRAMS), *libraries, str(CONTROL)]
    done = subprocess.run(
        ["nsenter", f"--mount=/proc/{state['pid']}/ns/mnt", "sh", "-c", MOUNT, "sh", str(root), *wanted],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    if done.returncode:
        fail(f"mount error: {done.stderr.strip()}")


if __name__ == "__main__":
    main()
