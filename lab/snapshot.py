"""Runs inside a twin, from standard input, and prints as JSON everything there that is not Lodger's: see lab.judge.

Standard library only. Each item is a dictionary of facts; what a restart changes is called pid, started, restarts.
"""

import grp
import hashlib
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

Items = dict[str, dict[str, object]]

# What is Lodger's by name, as the guest's rule has it.
OURS = re.compile(r"/opt/lodger(/|$)|/etc/lodger(/|$)|/var/lib/lodger(/|$)|/etc/systemd/system/(.*/)?lodger-[^/]*(/.*)?$")
TREES = ("/data", "/etc", "/home", "/opt", "/root", "/srv", "/usr/local", "/usr/bin", "/usr/lib/systemd", "/var/spool")
# Belongs to logins, or is remade by the system (cni: by containerd) whenever it likes.
PASSING = re.compile(
    r"/home/[^/]*/\.(bash_history|cache)|/etc/(mtab|ld\.so\.cache|\.pwd\.lock)$|/etc/cni(/|$)|.*/__pycache__(/|$)"
)
HASHED_UP_TO = 1 << 20


def output(*argv: str) -> str:
    """Return what a read-only command prints; a command that fails or is not there has nothing to say."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}).stdout
    except FileNotFoundError:
        return ""


def containers() -> tuple[Items, set[str], Items]:
    """Return foreign containers, the ids of Lodger's own, and the images that have names."""
    found: Items = {}
    own: set[str] = set()
    ids = output("docker", "ps", "-aq", "--no-trunc").split()
    for one in json.loads(output("docker", "inspect", *ids) or "[]") if ids else []:
        labels = one["Config"]["Labels"] or {}
        if "io.lodger.host" in labels:
            own.add(one["Id"])
            continue
        found[one["Name"].lstrip("/")] = {
            "id": one["Id"],
            "image": one["Image"],
            "command": one["Args"],
            "status": one["State"]["Status"],
            "exit code": one["State"]["ExitCode"],
            "restart policy": one["HostConfig"]["RestartPolicy"],
            "mounts": sorted(mount["Destination"] + " " + mount["Source"] for mount in one["Mounts"]),
            "ports": one["HostConfig"]["PortBindings"],
            "networks": sorted(one["NetworkSettings"]["Networks"]),
            "pid": one["State"]["Pid"],
            "started": one["State"]["StartedAt"],
            "restarts": one["RestartCount"],
        }
    images: Items = {}
    for line in output("docker", "images", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}").splitlines():
        name, _, identity = line.partition(" ")
        if not name.endswith(":<none>"):
            images[name] = {"id": identity}
    return found, own, images


def networks() -> Items:
    """Return Docker's networks that are not Lodger's."""
    form = "{{.Name}} {{.ID}} {{.Driver}}"
    found = (line.split() for line in output("docker", "network", "ls", "--no-trunc", "--format", form).splitlines())
    theirs: Items = {
        name: {"id": identity, "driver": driver} for name, identity, driver in found if not name.startswith("lodger-")
    }
    theirs.pop("bridge", None)  # Docker makes it anew whenever it starts
    return theirs


def volumes() -> Items:
    """Return Docker's volumes that have names."""
    found = (line.split() for line in output("docker", "volume", "ls", "--format", "{{.Name}} {{.Driver}}").splitlines())
    return {name: {"driver": driver} for name, driver in found if not re.fullmatch(r"lodger-.*|[0-9a-f]{64}", name)}


def units() -> Items:
    """Return systemd's services, sockets, timers and mounts; not login sessions, scopes and what timers start."""
    names = ["Id", "ActiveState", "SubState", "UnitFileState", "ActiveEnterTimestamp", "MainPID", "NRestarts", "TriggeredBy"]
    text = output("systemctl", "show", "--all", "*.service", "*.socket", "*.timer", "*.mount", "-p", ",".join(names))
    passing = (
        r"lodger-|user@|user-runtime-dir@|modprobe@|systemd-(hostnamed|localed|timedated|logind|networkd|tmpfiles-clean)\b"
    )
    found: Items = {}
    for block in text.strip().split("\n\n"):
        unit = dict(line.partition("=")[::2] for line in block.splitlines())
        name = unit.get("Id", "")
        if not name or re.match(passing, name) or ".timer" in unit["TriggeredBy"] or foreign_to_us(name):
            continue
        if unit["ActiveState"] == "inactive" and not unit["UnitFileState"]:
            continue
        found[name] = {
            "state": f"{unit['ActiveState']} ({unit['SubState']})",
            "unit file": unit["UnitFileState"],
            "started": unit["ActiveEnterTimestamp"],
            "pid": unit.get("MainPID", "0"),
            "restarts": unit.get("NRestarts", "0"),
        }
    return found


def foreign_to_us(unit: str) -> bool:
    """Say whether a mount unit only mirrors what Docker or a login mounts."""
    return bool(re.match(r"(var-lib-docker|run-docker|run-user|run-credentials|proc-|dev-)\S*\.mount$", unit))


def programs() -> Items:
    """Return supervisord's programs."""
    found: Items = {}
    for line in output("supervisorctl", "status").splitlines():
        name, state, *rest = line.split()
        found[name] = {"state": state, "pid": rest[1].strip(",") if rest[:1] == ["pid"] else ""}
    return found


def ports() -> Items:
    """Return what listens, with the program that does."""
    found: Items = {}
    for line in output("ss", "-Hltunp").splitlines():
        protocol, _, _, _, local, _, *users = line.split(maxsplit=6)
        if local.startswith("127.0.0.11:") or "containerd" in "".join(users):
            continue  # Docker's own, on another port after every start
        program = re.search(r'\(\("([^"]*)"', users[0]) if users else None
        found[f"{protocol} {local}"] = {"program": program[1] if program else ""}
    return found


def mounts() -> Items:
    """Return what is mounted where; not what Docker and logins mount."""
    found: Items = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        source, where, kind, options, *_ = line.split()
        if not re.match(r"/(var/lib/docker|run/docker|run/user|run/credentials)/", where):
            found[where] = {"source": source, "type": kind, "options": options}
    return found


def walk(top: Path) -> Iterator[Path]:
    """Yield a tree's entries, the top first, leaving out what is Lodger's or passing."""
    if OURS.match(str(top)) or PASSING.match(str(top)):
        return
    yield top
    if top.is_dir() and not top.is_symlink():
        for entry in sorted(top.iterdir()):
            yield from walk(entry)


def files(trees: Iterable[str]) -> Items:
    """Return mode, owner, content and time of the files in the trees; of large files the size only, of folders no time."""
    found: Items = {}
    for path in (path for tree in trees if Path(tree).exists() for path in walk(Path(tree))):
        status = path.lstat()
        facts: dict[str, object] = {"mode": oct(status.st_mode), "owner": f"{name_of(status.st_uid)}:{group_of(status.st_gid)}"}
        if path.is_symlink():
            facts["link"] = str(path.readlink())
        elif path.is_file():
            small = status.st_size <= HASHED_UP_TO
            facts["size"] = status.st_size
            if not os.path.ismount(path):  # Docker lays /etc/hosts and its like anew at every boot
                facts["changed"] = status.st_mtime_ns
            facts["content"] = hashlib.sha256(path.read_bytes()).hexdigest() if small else ""
        found[str(path)] = facts
    return found


def name_of(uid: int) -> str:
    """Return a user's name, or the number of one that is gone."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_of(gid: int) -> str:
    """Return a group's name, or the number of one that is gone."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def gpu_holders(own: set[str]) -> Items:
    """Return for every foreign owner (unit or container) its open GPUs and the memory it has of each."""
    locks: dict[tuple[int, int], int] = {}
    for line in Path("/proc/locks").read_text().splitlines():
        word = line.split()
        if word[1] == "POSIX" and word[7] != "EOF":
            key = (int(word[4]), int(word[5].split(":")[2]))
            locks[key] = locks.get(key, 0) + int(word[7]) - int(word[6]) + 1
    found: Items = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = {fd.readlink() for fd in (process / "fd").iterdir() if fd.is_symlink()}
            group = next(line for line in (process / "cgroup").read_text().splitlines() if line.startswith("0::"))
        except (OSError, StopIteration):
            continue
        if any(identity in group for identity in own):
            continue
        for device in sorted(str(path) for path in opened if re.fullmatch(r"/dev/nvidia\d+", str(path))):
            owner = found.setdefault(group.removeprefix("0::"), {})
            inode = Path(device).stat().st_ino
            owner[device] = int(str(owner.get(device, 0))) + locks.get((int(process.name), inode), 0)
    return found


def packages() -> Items:
    """Return the installed packages, and what dpkg finds wrong."""
    held, auto = (set(output("apt-mark", marked).split()) for marked in ("showhold", "showauto"))
    found: Items = {"(dpkg --audit)": {"says": output("dpkg", "--audit")}}
    for line in output("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n").splitlines():
        name, version, status = line.split(maxsplit=2)
        found[name] = {"version": version, "status": status.strip(), "held": name in held, "auto": name in auto}
    return found


def main() -> None:
    """Print the snapshot."""
    foreign, own, images = containers()
    snapshot: dict[str, Items] = {
        "boot": {"id": {"id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}},
        "container": foreign,
        "image": images,
        "network": networks(),
        "volume": volumes(),
        "unit": units(),
        "program": programs(),
        "port": ports(),
        "mount": mounts(),
        "file": files(TREES),
        "gpu": gpu_holders(own),
        "package": packages(),
    }
    json.dump(snapshot, sys.stdout)


main()
