#!/usr/bin/python3
"""NVIDIA's kernel modules in a twin: lsmod, modinfo, modprobe, rmmod and dmesg answer for them as the real programs would.

For every other module the real programs do the work. What is loaded is kept in memory and so is gone after a reboot, when
`kernel coldplug` loads what dkms left on disk, as udev does. A loaded module brings its device files and
/proc/driver/nvidia; it is in use while a module on top of it is loaded or a process has one of its devices open.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

# Driver branch -> newest CUDA it runs; NVIDIA's release notes, table 3 (565: as nvidia-smi shows it).
CUDA = {
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
}


class Module(NamedTuple):
    """A module: its size in memory (bytes), what it is built on, and which files below /dev are its own."""

    size: int
    needs: str
    devices: str


MODULES = {
    "nvidia": Module(56823808, "", r"nvidia(\d+|ctl)"),
    "nvidia_modeset": Module(1306624, "nvidia", r"nvidia-modeset"),
    "nvidia_drm": Module(77824, "nvidia_modeset", r"(?!)"),
    "nvidia_uvm": Module(1523712, "nvidia", r"nvidia-uvm(-tools)?"),
}
RELEASE = os.uname().release
ON_DISK = Path(f"/lib/modules/{RELEASE}/updates/dkms")
LOADED = Path("/run/twin-modules.json")  # {module: version}, in the order of loading
PROC = Path("/proc/driver/nvidia")
DEV = Path("/dev")
FAULTS = Path("/var/lib/twin/faults")
# With these, nvidia-kernel-common has udev load the other modules and start the daemon as soon as `nvidia` is there.
RULES = Path("/usr/lib/udev/rules.d/71-nvidia.rules")
DAEMON = Path("/usr/lib/systemd/system/nvidia-persistenced.service")
_USUAL_SECONDS = 0.1  # that loading or unloading one module takes


class Refused(Exception):
    """The kernel does not do it; the text is the reason as the programs word it."""


def cuda(driver: str) -> str:
    """Return the newest CUDA that a driver runs; of a branch that is not listed, what the one before it runs."""
    branch = int(driver.partition(".")[0])
    return CUDA[max((known for known in CUDA if known <= branch), default=min(CUDA))]


def loaded() -> dict[str, str]:
    """Return the loaded modules and their versions, in the order of loading."""
    try:
        found: dict[str, str] = json.loads(LOADED.read_text())
    except FileNotFoundError:
        return {}
    return found


def _keep(modules: dict[str, str]) -> None:
    beside = LOADED.with_suffix(".new")
    beside.write_text(json.dumps(modules))
    beside.chmod(0o644)
    beside.replace(LOADED)


def file_of(name: str) -> Path:
    """Return where a module lies for the running kernel."""
    return ON_DISK / f"{name.replace('_', '-')}.ko"


def info(name: str) -> dict[str, str] | None:
    """Return what the module's file says of it, or None when there is no such file."""
    try:
        lines = file_of(name).read_text().splitlines()
    except FileNotFoundError:
        return None
    return dict(line.partition("=")[::2] for line in lines)


def on_top_of(name: str) -> list[str]:
    """Return the loaded modules that are built on this one, the newest first."""
    return [other for other in reversed(loaded()) if MODULES[other].needs == name]


def opened(*names: str) -> dict[str, int]:
    """Return how many times devices of each module are open in all processes, containers included."""
    mine = {name: re.compile(rf"/dev/{MODULES[name].devices}( \(deleted\))?") for name in names}
    count = dict.fromkeys(names, 0)
    for process in os.scandir("/proc"):
        if not process.name.isdigit():
            continue
        try:
            links = [os.readlink(fd.path) for fd in os.scandir(f"{process.path}/fd")]  # noqa: PTH115  some thousand of them
        except OSError:
            continue  # ended meanwhile
        for link in links:
            if link.startswith("/dev/nvidia"):
                for name, pattern in mine.items():
                    count[name] += pattern.fullmatch(link) is not None
    if "nvidia" in count:
        count["nvidia"] += (FAULTS / "phantom-user").exists()
    return count


def pause(step: str) -> None:
    """Take the time that the step usually takes, or that a fault asks for."""
    fault = FAULTS / f"slow-{step}"
    time.sleep(float(fault.read_text()) if fault.exists() else _USUAL_SECONDS)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let one program at a time change what is loaded, and let no signal cut it in half."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    with LOADED.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---------------------------------------------------------------- loading and unloading


def load(name: str) -> None:
    """Load a module and what it is built on. Raises Refused, worded as by modprobe."""
    if name in loaded():
        return
    about = info(name)
    if about is None:
        raise Refused(f"modprobe: FATAL: Module {name} not found in directory /lib/modules/{RELEASE}")
    below = MODULES[name].needs
    if below:
        load(below)
        if loaded()[below] != about["version"]:
            raise Refused(f"modprobe: ERROR: could not insert '{name}': Invalid argument")
    pause("modprobe")
    refused = FAULTS / "refused-version"
    if refused.exists() and refused.read_text().strip() == about["version"]:
        raise Refused(f"modprobe: ERROR: could not insert '{name}': Key was rejected by service")
    _show(name, about["version"])
    _keep({**loaded(), name: about["version"]})
    if name == "nvidia":
        _as_udev_does()


def _as_udev_does() -> None:
    if not RULES.exists():
        return
    for other in MODULES:
        try:
            load(other)
        except Refused:
            continue  # udev has nobody to tell it to
    if DAEMON.exists() and Path("/run/systemd/system").exists():
        subprocess.run(["systemctl", "--no-block", "start", DAEMON.name], capture_output=True, check=False)


def _show(name: str, version: str) -> None:
    """Make what user land sees of a module that was loaded."""
    umask = os.umask(0)
    if name == "nvidia":
        PROC.mkdir(mode=0o755, exist_ok=True)
        (PROC / "version").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Mon Jan 12 07:49:57 UTC 2026\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
        )
        for gpu in _gpus(version):
            (DEV / f"nvidia{gpu['index']}").write_text(json.dumps(gpu) + "\n")
        (DEV / "nvidiactl").write_text("")
    elif name == "nvidia_uvm":
        (DEV / "nvidia-uvm").write_text("")
        (DEV / "nvidia-uvm-tools").write_text("")
    elif name == "nvidia_modeset":
        (DEV / "nvidia-modeset").write_text("")
    os.umask(umask)


def _gpus(version: str) -> list[dict[str, object]]:
    spec = json.loads(Path("/etc/twin.json").read_text())
    gpus = spec["gpus"]
    return [
        {
            "index": index,
            "name": gpus["model"],
            "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, spec['machine_id'] + str(index))}",
            "memory_mib": gpus["memory_mib"],
            "compute_capability": "8.6",
            "driver": version,
            "cuda": cuda(version),
        }
        for index in range(gpus["count"])
    ]


def unload(name: str) -> None:
    """Unload a module that nothing uses."""
    pause("rmmod")
    for path in DEV.glob("nvidia*"):
        if re.fullmatch(MODULES[name].devices, path.name):
            path.unlink()
    if name == "nvidia":
        shutil.rmtree(PROC)
    modules = loaded()
    del modules[name]
    _keep(modules)


# ---------------------------------------------------------------- the programs


def lsmod() -> None:
    """Print what is loaded: ours, and where the kernel has others, those."""
    if os.geteuid() != 0 and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0:
        # Only root sees who has a device open; the kernel itself tells everybody.
        os.execvp("sudo", ["sudo", "-n", "lsmod"])  # noqa: S606  # no shell in between is what is wanted
    print("Module                  Size  Used by")
    count = opened(*loaded())
    for name in reversed(loaded()):
        above = on_top_of(name)
        print(f"{name:<19} {MODULES[name].size:>8}  {len(above) + count[name]} {','.join(above)}".rstrip())
    others = Path("/proc/modules")
    for line in others.read_text().splitlines() if others.exists() else []:
        name, size, used, users, *_ = line.split()
        if name not in MODULES:
            print(f"{name:<19} {size:>8}  {used} {'' if users == '-' else users.rstrip(',')}".rstrip())


def modinfo(words: list[str]) -> int:
    """Print what the file of a module says."""
    field, names = "", []
    rest = iter(words)
    for word in rest:
        if word in {"-F", "--field"}:
            field = next(rest, "")
        elif word.startswith("--field="):
            field = word.partition("=")[2]
        elif word in {"-n", "--filename"}:
            field = "filename"
        elif not word.startswith("-"):
            names.append(word)
    if not names or any(ours(name) is None for name in names):
        real("modinfo", words)
    code = 0
    for name in names:
        about = info(ours(name) or name)
        if about is None:
            print(f"modinfo: ERROR: Module {name} not found.", file=sys.stderr)
            code = 1
            continue
        about = {"filename": str(file_of(ours(name) or name)), **about}
        if field:
            print(about.get(field, ""))
        else:
            print("\n".join(f"{key + ':':<15} {value}" for key, value in about.items()))
    return code


def modprobe(words: list[str]) -> int:
    """Load modules, or with -r unload them and what they are built on. Without -a, words after the first are parameters."""
    short = {letter for word in words if re.fullmatch(r"-[a-zA-Z]+", word) for letter in word[1:]}
    names = [word for word in words if not word.startswith("-")]
    remove = "r" in short or "--remove" in words
    every = remove or "a" in short or "--all" in words
    quiet = "q" in short or "--quiet" in words
    names = names if every else names[:1]
    if not names or all(ours(name) is None for name in names):
        real("modprobe", words)
    must_be_root("modprobe", names[0])
    code = 0
    for name in names:
        module = ours(name)
        if module is None:
            options = [word for word in words if word.startswith("-")]
            code |= subprocess.run(["modprobe", *options, name], executable="/bin/kmod", check=False).returncode
        elif short & {"n", "D"} or "--dry-run" in words or "--show-depends" in words:
            print(f"insmod {file_of(module)}")
        else:
            try:
                with alone():
                    _unload_with_base(module) if remove else load(module)
            except Refused as error:
                if not (quiet and "not found" in str(error)):
                    print(error, file=sys.stderr)
                code = 1
    return code


def _unload_with_base(name: str) -> None:
    if name not in loaded():
        return
    if on_top_of(name) or opened(name)[name]:
        raise Refused(f"modprobe: FATAL: Module {name} is in use.")
    unload(name)
    below = MODULES[name].needs
    if below and not on_top_of(below) and not opened(below)[below]:
        _unload_with_base(below)


def rmmod(words: list[str]) -> int:
    """Unload modules in the order given, each that can be."""
    names = [word for word in words if not word.startswith("-")]
    if not names or all(ours(name) is None for name in names):
        real("rmmod", words)
    must_be_root("rmmod", names[0])
    code = 0
    for name in names:
        module = ours(name)
        if module is None:
            code |= subprocess.run(["rmmod", name], executable="/bin/kmod", check=False).returncode
            continue
        with alone():
            users = on_top_of(module)
            if module not in loaded():
                complaint = "is not currently loaded"
            elif users:
                complaint = f"is in use by: {' '.join(users)}"
            elif opened(module)[module]:
                complaint = "is in use"
            else:
                unload(module)
                continue
        print(f"rmmod: ERROR: Module {module} {complaint}", file=sys.stderr)
        code = 1
    return code


def dmesg() -> None:
    """Print the twin's own log of the kernel; that of the machine is of no twin's hardware."""
    version = loaded().get("nvidia")
    lines = [f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {version}  Mon Jan 12 07:49:57 UTC 2026"] if version else []
    said = FAULTS / "kernel-log"
    lines += said.read_text().splitlines() if said.exists() else []
    for number, line in enumerate(lines):
        print(f"[{5.104321 + number:12.6f}] {line}")


def ours(name: str) -> str | None:
    """Return a module's name in the kernel's spelling, or None for one that is not NVIDIA's."""
    module = name.replace("-", "_")
    return module if module in MODULES else None


def must_be_root(program: str, name: str) -> None:
    """End as the kernel ends those who are not."""
    if os.geteuid() == 0:
        return
    said = {
        "modprobe": f"modprobe: ERROR: could not insert '{name}': Operation not permitted",
        "rmmod": f"rmmod: ERROR: ../libkmod/libkmod-module.c:799 kmod_module_remove_module() could not remove '{name}': "
        f"Operation not permitted\nrmmod: ERROR: could not remove module {name}: Operation not permitted",
    }
    sys.exit(said[program])


def real(program: str, words: list[str]) -> NoReturn:
    """Become the real program."""
    os.execv("/bin/kmod", [program, *words])  # noqa: S606  # the real program, in this one's place


def coldplug() -> None:
    """Load at boot what is on disk; a machine with no module, or one that the kernel does not take, boots too."""
    with alone(), contextlib.suppress(Refused):
        load("nvidia")


def main() -> int:
    """Be the program under whose name this was called."""
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    match program:
        case "lsmod":
            lsmod()
            return 0
        case "modinfo":
            return modinfo(words)
        case "modprobe":
            return modprobe(words)
        case "rmmod":
            return rmmod(words)
        case "dmesg":
            dmesg()
            return 0
    coldplug()
    return 0


if __name__ == "__main__":
    sys.exit(main())
