"""Runs inside a twin, from standard input, and prints as JSON everything there that is not Lodger's: see lab.judge.

Standard library only. Each item is a dictionary of facts; what a restart changes is called pid, started, restarts.
"""

import functools
import grp
import hashlib
import json
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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


def asked(path: str, request: str) -> str:
    """Return the body of the answer that a daemon gives at its socket; one that is not there has nothing to say.

    Docker's and supervisord's own programs take most of a snapshot's time to start.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            return ""
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return body.decode() if b" 200 " in head.split(b"\r\n")[0] else ""


def docker(what: str) -> Any:
    """Return what Docker says; None when it does not answer, or has no such thing any more."""
    body = asked("/run/docker.sock", f"GET /{what} HTTP/1.0\r\nHost: docker\r\n\r\n")
    return json.loads(body) if body else None


def containers() -> tuple[Items, set[str], Items]:
    """Return foreign containers, the ids of Lodger's own, and the images that have names."""
    found: Items = {}
    own: set[str] = set()
    for listed in docker("containers/json?all=1") or []:
        one = docker(f"containers/{listed['Id']}/json")
        if one is None:
            continue
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
    for image in docker("images/json") or []:
        for name in image["RepoTags"] or []:
            if not name.endswith(":<none>"):
                images[name] = {"id": image["Id"]}
    return found, own, images


def networks() -> Items:
    """Return Docker's networks that are not Lodger's."""
    theirs: Items = {
        one["Name"]: {"id": one["Id"], "driver": one["Driver"]}
        for one in docker("networks") or []
        if not one["Name"].startswith("lodger-")
    }
    theirs.pop("bridge", None)  # Docker makes it anew whenever it starts
    return theirs


def volumes() -> Items:
    """Return Docker's volumes that have names."""
    found = (docker("volumes") or {}).get("Volumes") or []
    return {one["Name"]: {"driver": one["Driver"]} for one in found if not re.fullmatch(r"lodger-.*|[0-9a-f]{64}", one["Name"])}


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
    call = "<?xml version='1.0'?><methodCall><methodName>supervisor.getAllProcessInfo</methodName></methodCall>"
    head = f"POST /RPC2 HTTP/1.0\r\nContent-Type: text/xml\r\nContent-Length: {len(call)}\r\n\r\n"
    found: Items = {}
    for one in re.findall(r"<struct>(.*?)</struct>", asked("/run/supervisor.sock", head + call), re.DOTALL):
        members = r"<name>(\w+)</name>\s*<value><(?:string|int)>(.*?)</(?:string|int)></value>"
        said = dict(re.findall(members, one, re.DOTALL))
        name = said["name"] if said["name"] == said["group"] else f"{said['group']}:{said['name']}"
        found[name] = {"state": said["statename"], "pid": said["pid"] if said["statename"] == "RUNNING" else ""}
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


def walk(top: str) -> Iterator[str]:
    """Yield a tree's entries, the top first, leaving out what is Lodger's or passing."""
    if OURS.match(top) or PASSING.match(top):
        return
    yield top
    try:
        with os.scandir(top) as entries:
            below = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except NotADirectoryError:
        return
    for name, folder in below:
        path = f"{top}/{name}"
        if folder:
            yield from walk(path)
        elif not (OURS.match(path) or PASSING.match(path)):
            yield path


def files(trees: Iterable[str]) -> Items:
    """Return mode, owner, content and time of the files in the trees; of large files the size only, of folders no time."""
    found: Items = {}
    mounted = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    for path in (path for tree in trees if os.path.lexists(tree) for path in walk(tree)):
        status = os.lstat(path)
        facts: dict[str, object] = {"mode": oct(status.st_mode), "owner": f"{name_of(status.st_uid)}:{group_of(status.st_gid)}"}
        if stat.S_ISLNK(status.st_mode):
            facts["link"] = os.readlink(path)  # noqa: PTH115  path is a string here
        elif stat.S_ISREG(status.st_mode):
            small = status.st_size <= HASHED_UP_TO
            facts["size"] = status.st_size
            if path not in mounted:  # Docker lays /etc/hosts and its like anew at every boot
                facts["changed"] = status.st_mtime_ns
            facts["content"] = hashlib.sha256(Path(path).read_bytes()).hexdigest() if small else ""
        found[path] = facts
    return found


@functools.cache
def name_of(uid: int) -> str:
    """Return a user's name, or the number of one that is gone."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.cache
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
