"""What can be read of a host. A fact is a read-only shell snippet and a pure parser; many are read in one round trip."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lodger.command import Command, quote
from lodger.errors import LodgerError, Refused

T = TypeVar("T")

_MARK = "@@lodger-fact"


class Unreadable(LodgerError):
    """A fact could not be read, or says something its parser does not understand."""


@dataclass(frozen=True)
class Fact(Generic[T]):
    """One thing to know of a host.

    ``snippet`` is POSIX sh that changes nothing, run as root; ``parse`` turns what it prints into a value and raises
    ValueError on what it does not understand. Two facts with the same name are the same fact.
    """

    name: str
    snippet: str = field(compare=False)
    parse: Callable[[str], T] = field(compare=False)


class Facts:
    """Values of facts as they were at one moment. Reading one that failed raises Unreadable, and only then."""

    def __init__(self, sections: Mapping[str, tuple[int, str]], host: str = "") -> None:
        self.sections = dict(sections)
        self.host = host
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, fact: Fact[T]) -> T:
        if fact.name not in self._parsed:
            if fact.name not in self.sections:
                raise Unreadable(f"{fact.name} was not read", host=self.host)
            code, text = self.sections[fact.name]
            if code != 0:
                lines = text.strip().splitlines()
                raise Unreadable(
                    f"{fact.name} could not be read", cause=lines[-1] if lines else f"exit code {code}", host=self.host
                )
            try:
                self._parsed[fact.name] = fact.parse(text)
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise Unreadable(
                    f"{fact.name} reads strangely", cause=f"{error}: {text.strip()[:200]!r}", host=self.host
                ) from error
        value: T = self._parsed[fact.name]
        return value

    def __contains__(self, fact: Fact[Any]) -> bool:
        return fact.name in self.sections

    def replaced(self, fact: Fact[Any], text: str, code: int = 0) -> Facts:
        """Return these facts as if ``fact`` had printed ``text`` and ended with ``code``."""
        other = Facts({**self.sections, fact.name: (code, text)}, self.host)
        other._parsed = {name: value for name, value in self._parsed.items() if name != fact.name}
        return other

    def dump(self) -> str:
        """Return the raw readings as JSON, for the ledger and the journal."""
        return json.dumps(self.sections)

    def over(self, later: Facts) -> Facts:
        """Return these, and of what was not read then what ``later`` says."""
        return Facts({**later.sections, **self.sections}, self.host)

    @staticmethod
    def load(text: str, host: str = "") -> Facts:
        """Return the facts that :meth:`dump` wrote; raise ValueError on anything else."""
        data = json.loads(text)
        return Facts({name: (int(code), str(said)) for name, (code, said) in data.items()}, host)


def script(facts: Iterable[Fact[Any]]) -> str:
    """Return one sh script that reads all ``facts``, each once, however often it is asked for.

    The marks between the readings carry a key that the host makes up for this one script: whatever a colleague's process
    is called, or a log says, is never taken for the end of a reading.
    """
    parts = [
        f'printf "{_MARK} $lodger_key begin %s\\n" {quote([fact.name])}\n(\n{fact.snippet}\n) 2>&1 </dev/null\n'
        f'printf "\\n{_MARK} $lodger_key end %d\\n" $?'
        for fact in dict.fromkeys(facts)
    ]
    return "\n".join([f'lodger_key=$(cat /proc/sys/kernel/random/uuid)\necho "{_MARK}s $lodger_key"', *parts])


def command(facts: Iterable[Fact[Any]], timeout: float = 90.0) -> Command:
    """Return the command that reads ``facts`` in one round trip."""
    return Command(script(facts), why="read the facts", timeout=timeout, output_limit=32 * 1024 * 1024)


def parse(text: str, host: str = "") -> Facts:
    """Return the facts in the output of :func:`script`; a section that is cut off is left out."""
    sections: dict[str, tuple[int, str]] = {}
    key = re.search(rf"^{_MARK}s (\S+)$", text, re.MULTILINE)
    if key is not None:
        mark = re.escape(f"{_MARK} {key[1]}")
        pattern = rf"^{mark} begin (?P<name>[^\n]*)\n(?P<body>.*?)\n^{mark} end (?P<code>\d+)\n"
        for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
            sections[match["name"]] = (int(match["code"]), match["body"])
    return Facts(sections, host)


# ---------------------------------------------------------------- the machine


@dataclass(frozen=True)
class Machine:
    """The machine itself: ids in hex, uptime in seconds, clock in seconds since 1970 and as ``HH:MM`` where it stands."""

    machine_id: str
    boot_id: str
    hostname: str
    kernel: str
    uptime: float
    clock: float
    systemd: int
    local_time: str


def _machine(text: str) -> Machine:
    machine_id, boot_id, hostname, kernel, uptime, clock, local, systemd = text.split("\n")[:8]
    return Machine(
        machine_id, boot_id, hostname, kernel, float(uptime.split()[0]), float(clock), int(systemd.split()[1]), local
    )


MACHINE = Fact(
    "machine",
    "cat /etc/machine-id /proc/sys/kernel/random/boot_id; uname -n; uname -r; cat /proc/uptime; date +%s; date +%H:%M\n"
    "systemctl --version | head -n 1",
    _machine,
)


SYSTEM = Fact("system", "systemctl is-system-running || true", lambda text: text.strip())


@dataclass(frozen=True)
class Docker:
    """The container engine: versions ("" when missing), whether GPUs can be given to containers, and its data folder."""

    client: bool
    server: str
    compose: str
    gpu_hook: bool
    root: str


def _docker(text: str) -> Docker:
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return Docker(
        values["client"] == "yes",
        values["server"],
        values["compose"],
        values["hook"] == "yes",
        values["root"] or "/var/lib/docker",
    )


DOCKER = Fact(
    "docker",
    """command -v docker >/dev/null && echo client=yes || echo client=no
docker info --format 'server={{.ServerVersion}}
root={{.DockerRootDir}}' 2>/dev/null || printf 'server=\\nroot=\\n'
echo "compose=$(docker compose version --short 2>/dev/null)"
hook=no
pid=$(pidof -s dockerd) && path=$(tr '\\0' '\\n' < /proc/$pid/environ | sed -n 's/^PATH=//p')
for name in nvidia-container-runtime-hook nvidia-container-toolkit; do
    PATH=${path:-$PATH} command -v $name >/dev/null && hook=yes
done
echo hook=$hook""",
    _docker,
)


CURL = Fact("curl", "command -v curl >/dev/null && echo yes || echo no", lambda text: text.strip() == "yes")


@dataclass(frozen=True)
class Container:
    """A container, running or not. ``started`` is Docker's timestamp, ``address`` its own address on its network."""

    id: str
    name: str
    image: str
    status: str
    restart_policy: str
    restart_count: int
    started: str
    pid: int
    labels: Mapping[str, str]
    address: str
    published: tuple[int, ...]
    removed_when_stopped: bool = False

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.status == "running"


def _restart_policy(policy: Mapping[str, Any]) -> str:
    """Return a policy as `docker update --restart` takes it: ``on-failure:3`` has its number."""
    name, most = policy["Name"] or "no", policy.get("MaximumRetryCount", 0)
    return f"{name}:{most}" if most else name


def _containers(text: str) -> dict[str, Container]:
    found: dict[str, Container] = {}
    for line in text.split("\n"):  # JSON leaves in place some characters at which splitlines() splits
        if not line.startswith("["):
            continue
        # A ledger may come from a Lodger that did not ask for the last one yet.
        ident, name, image, status, policy, count, started, pid, labels, networks, mode, ports, *removed = json.loads(line)
        address = next((net["IPAddress"] for net in (networks or {}).values() if net.get("IPAddress")), "")
        found[name.lstrip("/")] = Container(
            id=ident,
            name=name.lstrip("/"),
            image=image,
            status=status,
            restart_policy=_restart_policy(policy),
            restart_count=int(count),
            started=started,
            pid=int(pid),
            labels=labels or {},
            address="127.0.0.1" if mode == "host" else address,
            published=tuple(sorted({int(one["HostPort"]) for bound in (ports or {}).values() for one in bound or ()})),
            removed_when_stopped=removed == [True],
        )
    return found


_INSPECTED = (
    *(
        "Id",
        "Name",
        "Config.Image",
        "State.Status",
        "HostConfig.RestartPolicy",
        "RestartCount",
        "State.StartedAt",
        "State.Pid",
    ),
    *("Config.Labels", "NetworkSettings.Networks", "HostConfig.NetworkMode", "NetworkSettings.Ports"),
    "HostConfig.AutoRemove",
)
_INSPECT = "[" + ",".join(f"{{{{json .{name}}}}}" for name in _INSPECTED) + "]"
# A container may vanish between the two commands; what is left is still the truth of the moment.
CONTAINERS = Fact(
    "containers",
    f"""command -v docker >/dev/null || exit 0
ids=$(docker ps -aq --no-trunc) || exit 1
[ -z "$ids" ] || docker inspect --format {quote([_INSPECT])} $ids 2>/dev/null || true""",
    _containers,
)


@dataclass(frozen=True)
class Unit:
    """A systemd unit as ``systemctl show`` has it. ``restarts`` counts systemd's own restarts since it was started."""

    id: str
    active: str
    sub: str
    file_state: str
    fragment: str
    result: str
    main_pid: int
    restarts: int
    started: str
    timer_driven: bool
    type: str

    @property
    def given_up(self) -> str:
        """That it failed and systemd starts it no more, in words; "" otherwise, between two restarts too."""
        return f"{self.id} failed ({self.result}) and is not started again" if self.active == self.sub == "failed" else ""


def _units(text: str) -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" not in values:
            continue
        units[values["Id"]] = Unit(
            values["Id"],
            values.get("ActiveState", ""),
            values.get("SubState", ""),
            values.get("UnitFileState", ""),
            values.get("FragmentPath", ""),
            values.get("Result", ""),
            int(values.get("MainPID") or 0),
            int(values.get("NRestarts") or 0),
            values.get("ActiveEnterTimestampMonotonic", ""),
            ".timer" in values.get("TriggeredBy", ""),
            values.get("Type", ""),
        )
    return units


_SHOW = (
    "systemctl show --no-pager -p Id,ActiveState,SubState,UnitFileState,FragmentPath,Result,MainPID,NRestarts"
    ",ActiveEnterTimestampMonotonic,TriggeredBy,Type"
)
UNITS = Fact(
    "units",
    # Unloaded unit files of ours count too: an enabled unit that is not active is not in the list of loaded units.
    f"{_SHOW} '*.service' '*.socket' '*.mount' '*.timer'\n"
    "echo\n"
    f'names=$(cd /etc/systemd/system && ls -d lodger-*.service 2>/dev/null)\n[ -z "$names" ] || {_SHOW} $names',
    _units,
)


def unit_fact(name: str, *, user: str = "") -> Fact[Unit | None]:
    """Return the fact of one unit, loaded or not, of the system or of a ``user``; None when no such unit is known."""

    def parse_one(text: str) -> Unit | None:
        unit = next(iter(_units(text).values()), None)
        return None if unit is None or (not unit.fragment and unit.active == "inactive") else unit

    if not user:
        return Fact(f"unit {name}", f"{_SHOW} -- {quote([name])}", parse_one)
    # A user who is not logged in has no manager that could be asked, and no such unit runs.
    show = _SHOW.replace("systemctl", f"systemctl --user {quote([f'--machine={user}@.host'])}", 1)
    return Fact(f"unit {user}:{name}", f"{show} -- {quote([name])} 2>/dev/null || true", parse_one)


@dataclass(frozen=True)
class Program:
    """A supervisord program: ``name`` as supervisorctl prints it (``group:name`` in a group), its state and pid (0: none)."""

    name: str
    state: str
    pid: int


def _programs(text: str) -> dict[str, Program]:
    programs: dict[str, Program] = {}
    for line in text.splitlines():
        match = re.match(r"^(\S+)\s+(RUNNING|STOPPED|STARTING|BACKOFF|STOPPING|EXITED|FATAL|UNKNOWN)\b(?:\s+pid (\d+))?", line)
        if match:
            programs[match[1]] = Program(match[1], match[2], int(match[3] or 0))
    return programs


# supervisorctl status exits 3 when a program is not running, which is no failure to read.
PROGRAMS = Fact(
    "programs", "command -v supervisorctl >/dev/null || exit 0\nsupervisorctl status || [ $? = 3 ] || true", _programs
)


@dataclass(frozen=True)
class Port:
    """A listening socket: protocol (tcp, udp), local address, port, and the first process that owns it ("" and 0: unknown)."""

    protocol: str
    address: str
    port: int
    process: str
    pid: int


def _ports(text: str) -> tuple[Port, ...]:
    ports = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 5:
            continue
        address, _, port = fields[4].rpartition(":")
        owner = re.search(r'\("([^"]*)",pid=(\d+)', line)
        ports.append(Port(fields[0], address, int(port), owner[1] if owner else "", int(owner[2]) if owner else 0))
    return tuple(ports)


PORTS = Fact("ports", "ss -Hltunp", _ports)


@dataclass(frozen=True)
class Process:
    """A process that listens or has a GPU open. ``cgroup`` and ``parents`` (pids) lead to its owner.

    ``devices`` are the ``/dev/nvidia*`` files it has open, ``gpus`` the numbers among them.
    """

    pid: int
    user: str
    command: str
    cgroup: str
    parents: tuple[int, ...]
    devices: tuple[str, ...]

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs it has open."""
        return tuple(sorted({int(match[1]) for device in self.devices if (match := re.match(r"/dev/nvidia(\d+)", device))}))

    @property
    def container(self) -> str:
        """The id of the container it runs in, "" for none."""
        match = re.search(r"docker[-/]([0-9a-f]{64})", self.cgroup)
        return match[1] if match else ""

    @property
    def unit(self) -> str:
        """The system unit it belongs to, "" when its cgroup names none."""
        match = re.search(r"/([^/ ]+\.service)(?:[/ ]|$)", self.cgroup)
        return match[1] if match else ""


def _processes(text: str) -> dict[int, Process]:
    processes: dict[int, Process] = {}
    for block in re.split(r"^@pid ", text, flags=re.MULTILINE)[1:]:
        pid, user, parents, cgroup, devices, *command = block.split("\n")
        processes[int(pid)] = Process(
            int(pid),
            user,
            "\n".join(command).strip(),
            cgroup,
            tuple(int(word) for word in parents.split()),
            tuple(sorted(set(devices.split()))),
        )
    return processes


# GPU holders are found by the links of /proc/*/fd, not by fuser: a process in a container may have a device node of its
# own, which fuser does not match.
PROCESSES = Fact(
    "processes",
    r"""open=$(find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%p %l\n' 2>/dev/null |
    sed 's|^/proc/\([0-9]*\)/fd/[0-9]*|\1|')
{
    printf '%s\n' "$open" | cut -d' ' -f1
    ss -Hltunp | grep -o 'pid=[0-9]*' | cut -d= -f2
} | sort -un | while read -r pid; do
    [ -r "/proc/$pid/status" ] || continue
    user=$(stat -c %U "/proc/$pid" 2>/dev/null) || continue
    chain= up=$pid
    while up=$(awk '/^PPid:/ {print $2}' "/proc/$up/status" 2>/dev/null) && [ "${up:-0}" -gt 1 ]; do chain="$chain $up"; done
    printf '@pid %s\n%s\n%s\n' "$pid" "$user" "$chain"
    printf '%s\n' "$(cut -d: -f3- "/proc/$pid/cgroup" 2>/dev/null | tr '\n' ' ')"
    printf '%s\n' "$open" | awk -v pid="$pid" '$1 == pid {printf "%s ", $2}'
    echo
    tr '\0\n' '  ' < "/proc/$pid/cmdline" 2>/dev/null
    echo
done""",
    _processes,
)


def _mounts(text: str) -> dict[str, str]:
    mounts: dict[str, str] = {}
    for line in text.split("\n"):  # the kernel escapes ASCII blanks only: a path may hold what split() takes for one
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) >= 6 and right:
            kind, source, *options = right.split(" ")
            read_only = "ro" in fields[5].split(",") or "ro" in options[-1].split(",")
            where = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            mounts[where] = f"{kind} {source}{' ro' if read_only else ''}"
    return mounts


MOUNTS = Fact("mounts", "cat /proc/self/mountinfo", _mounts)

# Everything that a footprint is made of; footprint.py says how.
FOOTPRINT: tuple[Fact[Any], ...] = (CONTAINERS, UNITS, PROGRAMS, PORTS, PROCESSES, MOUNTS)


@dataclass(frozen=True)
class Disk:
    """Room on the file system that holds a folder (bytes), and whether it can be written at all."""

    free: int
    writable: bool


def disk_fact(folder: str) -> Fact[Disk]:
    """Return the fact of the file system below ``folder``, or below its nearest existing parent."""

    def parse_disk(text: str) -> Disk:
        free, writable = text.split()
        return Disk(int(free) * 1024, writable == "yes")

    snippet = f"""dir={quote([folder])}
while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
df -Pk "$dir" | awk 'NR == 2 {{print $4}}'
[ -w "$dir" ] && echo yes || echo no"""
    return Fact(f"disk {folder}", snippet, parse_disk)


# ---------------------------------------------------------------- GPUs


@dataclass(frozen=True)
class Gpu:
    """One GPU: index, name, memory in all and in use (MiB)."""

    index: int
    name: str
    memory: int
    used: int


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: version loaded in the kernel, version that nvidia-smi reports, and its complaint if any."""

    loaded: str
    reported: str
    complaint: str
    gpus: tuple[Gpu, ...]


def _driver(text: str) -> Driver:
    loaded = re.search(r"^loaded=(?:.*?\s)?(\d+\.\d+(?:\.\d+)?)\b", text, re.MULTILINE)
    code = re.search(r"^code=(\d+)$", text, re.MULTILINE)
    said = [line for line in text.splitlines() if not line.startswith(("loaded=", "code="))]
    if code is None or code[1] != "0":
        return Driver(loaded[1] if loaded else "", "", " ".join(said).strip() or "nvidia-smi failed", ())
    gpus = []
    version = ""
    for line in said:
        fields = [part.strip() for part in line.split(",")]
        if len(fields) == 5:
            gpus.append(Gpu(int(fields[0]), fields[1], int(fields[2]), int(fields[3])))
            version = fields[4]
    return Driver(loaded[1] if loaded else "", version, "", tuple(gpus))


DRIVER = Fact(
    "driver",
    """echo "loaded=$(grep -s '^NVRM version' /proc/driver/nvidia/version)"
nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version --format=csv,noheader,nounits
echo code=$?""",
    _driver,
)


# ---------------------------------------------------------------- what is ours


@dataclass(frozen=True)
class HostFile:
    """A file of ours as it stands on the host."""

    content: str
    mode: int
    owner: str


def decode_files(text: str) -> dict[str, HostFile]:
    """Parse lines of ``mode owner base64(path) base64(content)``; raises ValueError on any other line."""
    files: dict[str, HostFile] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) == 3:
            fields.append("")
        mode, owner, path, content = fields
        try:
            raw = base64.b64decode(content, validate=True).decode("utf-8", "replace")
            files[base64.b64decode(path, validate=True).decode()] = HostFile(raw, int(mode, 8), owner)
        except binascii.Error as error:
            raise ValueError(f"not base64: {line[:80]}") from error
    return files


def files_snippet(selection: str) -> str:
    """Return sh that prints the files that the ``find`` arguments ``selection`` choose, for :func:`decode_files`."""
    return (
        f"find {selection} -type f -print 2>/dev/null | sort | while IFS= read -r path; do\n"
        '    printf \'%s %s \' "$(stat -c \'%a %U\' "$path")" "$(printf %s "$path" | base64 -w0)"\n'
        '    base64 -w0 < "$path"\n    echo\n'
        "done"
    )


MANIFEST = 1  # the version of a release's manifest


@dataclass(frozen=True)
class Deployed:
    """Lodger's own files on the host.

    ``current`` is the release the host is recorded to run ("" for none), ``history`` the releases in the order they
    were deployed (the last is the current one), ``stored`` all that are kept, ``links`` service -> release whose files
    it runs, ``files`` absolute path -> file for the current release, its units and the records below /var/lib/lodger,
    ``keys`` the names of the files with keys of pools, whose content is nobody's to read.
    """

    current: str
    history: tuple[str, ...]
    stored: tuple[str, ...]
    links: Mapping[str, str]
    files: Mapping[str, HostFile]
    keys: tuple[str, ...] = ()

    def manifest(self, release: str) -> dict[str, Any]:
        """Return the manifest of a stored release; raise Refused when it has none, or one that is no manifest."""
        path = _manifest(release)
        try:
            data = json.loads(self.files[path].content)
        except (KeyError, ValueError) as error:
            raise self.no_manifest(release, str(error) if path in self.files else "it is not there") from error
        if not isinstance(data, dict):
            raise self.no_manifest(release, "it holds no object")
        if (version := data.get("version", MANIFEST)) != MANIFEST:
            raise self.no_manifest(release, f"it has version {version}, this Lodger knows {MANIFEST}")
        return data

    def no_manifest(self, release: str, why: str) -> Refused:
        """Return the refusal to work with a release whose manifest is missing or says something else."""
        path = _manifest(release)
        afresh = f"remove {path.rpartition('/')[0]} and /opt/lodger/current to begin afresh"
        over = f"take the line {release} out of /opt/lodger/history to pass it over"
        hint = f"put the file back, or {afresh if release == self.current else over}"
        return Refused(f"release {release} has no readable manifest", cause=f"{path}: {why}", hint=hint)

    @property
    def standing(self) -> tuple[object, ...]:
        """All that says what the host is to run: record, links, units, and which neighbours are owed."""
        decisive = ("/etc/systemd/system/", "/var/lib/lodger/replaced/")
        files = {path: file for path, file in self.files.items() if path.startswith(decisive)}
        return self.current, self.history, dict(self.links), files

    def record(self, name: str) -> str | None:
        """Return the content of the file ``name`` below /var/lib/lodger, None when there is none."""
        found = self.files.get(f"/var/lib/lodger/{name}")
        return found.content if found is not None else None


def _manifest(release: str) -> str:
    return f"/opt/lodger/releases/{release}/manifest.json"


def _deployed(text: str) -> Deployed:
    head, _, rest = text.partition("@files\n")
    values: dict[str, list[str]] = {}
    for line in head.splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value)
    links = dict(item.split(" ", 1) for item in values.get("link", []))
    return Deployed(
        values.get("current", [""])[0].rpartition("/")[2],
        tuple(value for value in values.get("history", []) if value),
        tuple(value for value in values.get("stored", []) if value),
        {name: target.split("/")[-2] for name, target in links.items() if target.startswith("/opt/lodger/releases/")},
        decode_files(rest),
        tuple(value for value in values.get("key", []) if value),
    )


# What is no record is not read: a driver's packages take hundreds of MB.
_UNREAD = tuple(f"/var/lib/lodger/{name}" for name in ("driver", "fetch", "journal", "lock*", "share", "unfinished.json*"))

DEPLOYED = Fact(
    "deployed",
    """echo "current=$(readlink /opt/lodger/current)"
sed 's/^/history=/' /opt/lodger/history 2>/dev/null
ls /opt/lodger/releases 2>/dev/null | grep -x '[0-9a-f]*' | sed 's/^/stored=/'
for link in /opt/lodger/services/*; do [ -L "$link" ] && echo "link=$(basename "$link") $(readlink "$link")"; done
ls /etc/lodger/keys 2>/dev/null | sed 's/^/key=/'
echo @files
"""
    + files_snippet(
        "/opt/lodger/releases /etc/systemd/system /var/lib/lodger -maxdepth 3 "
        r"\( -path '/etc/systemd/system/*' ! -path '/etc/systemd/system/lodger-*' "
        + " ".join(f"-o -path '{path}'" for path in _UNREAD)
        + r" \) -prune -o -size -1024k"
    ),
    _deployed,
)

# A command goes on when its connection or its controller is gone; the transport marks each in its environment.
BUSY = Fact(
    "busy",
    r"""for file in $(grep -lzsE '^LODGER_COMMAND=' /proc/[0-9]*/environ); do
    mark=$({ tr '\0' '\n' < "$file"; } 2>/dev/null | sed -n 's/^LODGER_COMMAND=//p')
    [ -z "$mark" ] || [ "$mark" = "$LODGER_COMMAND" ] ||
        { printf 'busy %s\n' "$(tr '\0\n' '  ' < "${file%environ}cmdline" | cut -c1-200)"; } 2>/dev/null
done
systemctl list-units --plain --no-legend --state=active,activating,deactivating 'lodger-step-*' | sed 's/^/busy /'""",
    lambda text: [line.removeprefix("busy ") for line in text.split("\n") if line.startswith("busy ")],
)

# An empty file is no missing one: what it said of the things to put back is lost.
LEDGER = Fact(
    "ledger",
    "f=/var/lib/lodger/unfinished.json; [ ! -e $f ] || { [ -s $f ] && cat $f || echo 'nothing in it'; }",
    lambda text: text.strip(),
)


def images_fact(references: Sequence[str]) -> Fact[dict[str, bool]]:
    """Return the fact which of ``references`` (``repository@sha256:...``) the host has."""
    wanted = tuple(sorted(set(references)))
    lines = [
        f"docker image inspect {quote([ref])} >/dev/null 2>&1 && echo yes {quote([ref])} || echo no {quote([ref])}"
        for ref in wanted
    ]

    def parse_images(text: str) -> dict[str, bool]:
        have = {line.removeprefix("yes ") for line in text.splitlines() if line.startswith("yes ")}
        return {ref: ref in have for ref in wanted}

    return Fact(f"images {' '.join(wanted)}", "\n".join(lines) or "true", parse_images)


@dataclass(frozen=True)
class Folder:
    """A model's folder: whether it has a config.json, the bytes of its files as their sizes say, and whether they are whole.

    ``mixed`` where a fetch was cut short while it put one revision in the place of another. ``lost`` counts the files that a
    fetch recorded and that are not there in their size, None where it recorded nothing.
    """

    config: bool
    size: int
    mixed: bool = False
    lost: int | None = None


def folder_fact(path: str) -> Fact[Folder]:
    """Return the fact of one model folder."""
    name = quote([path])

    def parse_folder(text: str) -> Folder:
        config, mixed, size, *lost = text.split()
        return Folder(config == "yes", int(size), mixed == "yes", int(lost[0]) if lost else None)

    return Fact(
        f"folder {path}",
        # %.0f: mawk's %d ends at 2 GiB.
        f"""[ -f {name}/config.json ] && echo yes || echo no
[ -e {name}/.lodger/placing ] && echo yes || echo no
find {name} -path {name}/.lodger -prune -o -type f -printf '%s\\n' 2>/dev/null |
    awk '{{n += $1}} END {{printf "%.0f\\n", n}}'
[ ! -f {name}/.lodger/manifest ] || {{
    sed '/^#/d; s/^/recorded\\t/' {name}/.lodger/manifest
    find {name} -path {name}/.lodger -prune -o -type f -printf 'there\\t%s\\t%P\\n' 2>/dev/null
}} | awk -F '\\t' '$1 == "recorded" {{ size[$5] = $3 }} $1 == "there" && ($3 in size) && size[$3] == $2 {{ delete size[$3] }}
    END {{ n = 0; for (path in size) n++; print n }}'""",
        parse_folder,
    )


@dataclass(frozen=True)
class Serving:
    """How one service of ours stands: its container, /health at its own address (0: no answer), last log lines."""

    container: str
    address: str
    port: int
    config: str
    health: int
    log: str


def serving_fact(container: str, unit: str, host: str) -> Fact[Serving]:
    """Return the readiness of the service in ``container``: found by our labels, asked at its own address and port.

    /health generates a token and answers 200 only when the engine can serve (recordings: an open port, /v1/models or a
    log line prove nothing); it takes at least a second, and 20 s when the scheduler hangs. A router's /health is 200 with no
    worker behind it: whom it sends requests to, its list tells. The label names the path that is asked.
    """
    labels = "|".join(f'{{{{index .Config.Labels "io.lodger.{name}"}}}}' for name in ("host", "config", "port", "health"))
    address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    form = "{{.Id}}|{{.State.Running}}|{{.HostConfig.NetworkMode}}|" + f"{address}|{labels}"
    snippet = f"""IFS='|'; set -- $(docker inspect --format {quote([form])} -- {quote([container])} 2>/dev/null); unset IFS
[ "$5" = {quote([host])} ] || set --
code=0
if [ "$2" = true ]; then
    address=$4; [ "$3" = host ] && address=127.0.0.1
    code=$(curl -s -o /dev/null -w '%{{http_code}}' --noproxy '*' --max-time 25 "http://$address:$7$8") || code=0
fi
printf 'container=%s\naddress=%s\nport=%s\nconfig=%s\nhealth=%s\n@log\n' "$1" "$address" "$7" "$6" "$code"
[ "$code" = 200 ] || journalctl -u {quote([unit])} -n 80 -o cat --no-pager 2>/dev/null || true"""

    def parse_serving(text: str) -> Serving:
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)  # Compose moves the cursor even where there is none
        head, _, log = text.partition("@log\n")
        values = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
        return Serving(
            values["container"],
            values["address"],
            int(values["port"] or 0),
            values["config"],
            int(values["health"]),
            log.strip(),
        )

    return Fact(f"serving {container}", snippet, parse_serving)
