"""The machine: ids, units, programs, ports, processes, mounts, disks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lodger.host import nvidia, paths
from lodger.host.command import quote
from lodger.host.facts.base import Fact

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
    "cat /etc/machine-id /proc/sys/kernel/random/boot_id /proc/sys/kernel/hostname /proc/sys/kernel/osrelease /proc/uptime\n"
    "date '+%s%n%H:%M'\n"
    'systemctl --version | { read -r line; printf "%s\\n" "$line"; }',
    _machine,
    takes=8,
)

SYSTEM = Fact("system", "systemctl is-system-running || true", lambda text: text.strip())

CURL = Fact("curl", "command -v curl >/dev/null && echo yes || echo no", lambda text: text.strip() == "yes")


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
    "ours=\n"
    f"for file in {paths.UNITS}/{paths.PREFIX}*.service; do "
    '[ ! -e "$file" ] && [ ! -L "$file" ] || ours="$ours ${file##*/}"; done\n'
    f"{_SHOW} '*.service' '*.socket' '*.mount' '*.timer' $ours",
    _units,
    takes=40,
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


# supervisorctl takes 0.1 s to start, so supervisord is asked what it would ask; but only where its configuration, the first of
# those that it looks for, names a plain socket and no password. `status` exits 3 when a program is not running, which is no
# failure to read.
PROGRAMS = Fact(
    "programs",
    r"""command -v supervisorctl >/dev/null || exit 0
ask() {
    prefix=$(command -v supervisorctl) && prefix=${prefix%/*} && prefix=${prefix%/*}
    for file in "$prefix/etc/supervisord.conf" "$prefix/supervisord.conf" supervisord.conf etc/supervisord.conf \
        /etc/supervisord.conf /etc/supervisor/supervisord.conf; do [ ! -e "$file" ] || break; done
    socket=$(awk '
        /^\[/ { ours = /^\[supervisorctl\]/ }
        ours && /^(username|password|serverurl)[ \t]*[=:]/ {
            if (!match($0, /^serverurl[ \t]*=[ \t]*unix:\/\/\/[A-Za-z0-9\/._-]+([ \t]*$|[ \t]+;)/) || found++) exit odd = 1
            gsub(/^[^\/]*\/\/|[ \t].*$/, ""); path = $0
        }
        END { if (!odd) print path }' "$file") && [ -S "$socket" ] || return
    curl -qsf --noproxy '*' --unix-socket "$socket" -H 'Content-Type: text/xml' http://localhost/RPC2 --data-binary \
        '<methodCall><methodName>supervisor.getAllProcessInfo</methodName><params></params></methodCall>' | awk '
        /^<name>.*<\/name>$/ { key = substr($0, 7, length($0) - 13); next }
        /^<value><[a-z0-9]+>.*<\/[a-z0-9]+><\/value>$/ {
            gsub(/^<value><[a-z0-9]+>|<\/[a-z0-9]+><\/value>$/, "")
            gsub(/&lt;/, "<"); gsub(/&gt;/, ">"); gsub(/&amp;/, "\\&"); said[key] = $0
        }
        /^<\/struct>/ {
            name = said["group"] == said["name"] ? said["name"] : said["group"] ":" said["name"]
            lines = lines sprintf("%-32s %-9s %s\n", name, said["statename"], said["description"]); split("", said)
        }
        /<fault>/ { odd = 1 }
        /^<\/methodResponse>/ { ended = 1 }
        END { if (!ended || odd) exit 1; printf "%s", lines }'
}
ask 2>/dev/null || supervisorctl status || [ $? = 3 ] || true""",
    _programs,
    takes=15,
)


@dataclass(frozen=True)
class ListeningPort:
    """A listening socket: protocol (tcp, udp), local address, port, and the first process that owns it ("" and 0: unknown)."""

    protocol: str
    address: str
    port: int
    process: str
    pid: int


def _ports(text: str) -> tuple[ListeningPort, ...]:
    ports = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 5:
            continue
        address, _, port = fields[4].rpartition(":")
        owner = re.search(r'\("([^"]*)",pid=(\d+)', line)
        ports.append(ListeningPort(fields[0], address, int(port), owner[1] if owner else "", int(owner[2]) if owner else 0))
    return tuple(ports)


PORTS = Fact("ports", "ss -Hltunp", _ports, takes=8)


@dataclass(frozen=True)
class Process:
    """A process that listens or has a GPU open. ``cgroup`` and ``parents`` (pids) lead to its owner.

    ``devices`` are the ``/dev/nvidia*`` files it has open, ``gpus`` the numbers among them. ``program`` is the path of its
    executable where that is one of :data:`KNOWN_PROGRAMS`, "" for any other, None where nobody asked (a ledger of an earlier
    version); ``by_root`` says that root runs that program.
    """

    pid: int
    user: str
    command: str
    cgroup: str
    parents: tuple[int, ...]
    devices: tuple[str, ...]
    program: str | None = None
    by_root: bool = False

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs it has open."""
        return tuple(sorted({int(match[1]) for device in self.devices if (match := re.match(r"/dev/nvidia(\d+)", device))}))

    @cached_property
    def container(self) -> str:
        """The id of the container it runs in, "" for none."""
        match = re.search(r"docker[-/]([0-9a-f]{64})", self.cgroup)
        return match[1] if match else ""

    @cached_property
    def unit(self) -> str:
        """The system unit it belongs to, "" when its cgroup names none.

        Only root makes units below a chain of slices; what a user's manager or a container calls a unit lies deeper.
        """
        match = re.search(r"(?:^| )(?:/[^/ ]+\.slice)*/([^/ ]+\.service)(?=[/ ]|$)", self.cgroup)
        return match[1] if match else ""

    @cached_property
    def user_unit(self) -> tuple[int, str] | None:
        """The unit of a user's own manager that it belongs to, after that user's number."""
        manager = r"(?:^| )/user\.slice/user-\d+\.slice/user@(\d+)\.service/"
        match = re.search(manager + r"(?:[^ ]*?/)?([^/ ]+\.service)(?=[/ ]|$)", self.cgroup)
        return (int(match[1]), match[2]) if match else None


def _processes(text: str) -> dict[int, Process]:
    processes: dict[int, Process] = {}
    head, *blocks = re.split(r"^@pid ", text, flags=re.MULTILINE)
    programs = {
        int(pid): (path, uid == "0") for pid, uid, path in re.findall(r"^@program (\d+) (\d+) (\S+)$", head, re.MULTILINE)
    }
    users = {int(uid): name for uid, name in re.findall(r"^@user (\d+) (.+)$", head, re.MULTILINE)}
    unknown = ("" if "@programs" in head.split() else None, False)
    for block in blocks:
        pid, user, parents, cgroup, devices, *command = block.split("\n")
        found = Process(
            int(pid),
            user,
            "\n".join(command).strip(),
            cgroup,
            tuple(int(word) for word in parents.split()),
            tuple(sorted(set(devices.split()))),
            *programs.get(int(pid), unknown),
        )
        managed = found.user_unit
        processes[found.pid] = replace(found, user=users[managed[0]]) if managed and managed[0] in users else found
    return processes


def programs_snippet(programs: Sequence[str]) -> str:
    """Return sh that prints ``@program PID UID PATH`` for each process that runs one of ``programs``, by its real user.

    Only in the mount namespace of who asks: in another one a path leads to whatever somebody put there.
    """
    names = " -o ".join(f"-lname {quote([name])}" for path in programs for name in (path, f"{path} (deleted)"))
    return f"""find /proc/[0-9]*/exe '(' {names} ')' -printf '%h %l\\n' 2>/dev/null | while read -r dir program _; do
    [ ! "$dir/ns/mnt" -ef /proc/self/ns/mnt ] || echo "${{dir#/proc/}} $dir/status $program"
done | awk '{{
    uid = ""
    while ((getline line < $2) > 0) if (line ~ /^Uid:/) {{ split(line, words); uid = words[2]; break }}
    close($2)
    print "@program " $1 " " uid " " $3
}}'"""


SSHD = ("/usr/sbin/sshd", "/usr/lib/openssh/sshd-session", "/usr/libexec/openssh/sshd-session")
"""Executables of OpenSSH's server; from 9.8 on, a connection has one of its own."""
KNOWN_PROGRAMS = (*nvidia.DAEMON_PROGRAMS, *SSHD)
"""Executables by which a process is known; its command line says whatever it likes."""


# GPU holders are found by the links of /proc/*/fd, not by fuser: a process in a container may have a device node of its
# own, which fuser does not match. Whose a unit of a user is, logind's folder for that user says: the owner of a folder in
# /proc is root as soon as a process wants it. However many processes there are, it takes the same few programs: awk itself
# reads the files without NUL, and grep makes of each argument two records, the file's name and the argument.
PROCESSES = Fact(
    "processes",
    f"echo @programs\n{programs_snippet(KNOWN_PROGRAMS)}\nstat -c '@user %u %U' /run/user/[0-9]* 2>/dev/null\n"
    r"""open=$(find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%p %l\n' 2>/dev/null |
    sed 's|^/proc/\([0-9]*\)/fd/[0-9]*|\1|')
pids=$({ printf '%s\n' "$open" | cut -d' ' -f1; ss -Hltunp | grep -o 'pid=[0-9]*' | cut -d= -f2; } | sort -un)
[ -n "$pids" ] || exit 0
there=$(for pid in $pids; do [ ! -r "/proc/$pid/status" ] || echo "/proc/$pid"; done)
{
    printf '%s\n' "$open" | sed 's/^/device /'
    stat -c 'user %n %U' $there 2>/dev/null
    LC_ALL=C grep -aHzZ '' $(for each in $there; do echo "$each/cmdline"; done) 2>/dev/null |
        tr '\0\n' '\n ' | sed 's/^/argument /'
} | LC_ALL=C awk '
    function parent(pid,    file, line, found) {
        if (pid in above) return above[pid]
        file = "/proc/" pid "/status"; found = 0
        while ((getline line < file) > 0) if (line ~ /^PPid:/) { sub(/^PPid:[ \t]*/, "", line); found = line + 0; break }
        close(file)
        return above[pid] = found
    }
    $1 == "device" { devices[$2] = devices[$2] $3 " "; next }
    $1 == "user" { pid = substr($2, 7); user[pid] = $3; order[++count] = pid; next }
    of == "" { split($2, path, "/"); of = path[3]; next }
    { command[of] = command[of] substr($0, 10) " "; of = "" }
    END {
        for (n = 1; n <= count; n++) {
            pid = order[n]; chain = ""; groups = ""; file = "/proc/" pid "/cgroup"
            for (up = parent(pid); up > 1; up = parent(up)) chain = chain " " up
            while ((getline line < file) > 0) { sub(/^[^:]*:[^:]*:/, "", line); groups = groups line " " }
            close(file)
            print "@pid " pid "\n" user[pid] "\n" chain "\n" groups "\n" devices[pid] "\n" command[pid]
        }
    }'
""",
    _processes,
    takes=25,
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


MOUNTS = Fact("mounts", "cat /proc/self/mountinfo", _mounts, takes=2)


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
room=$(stat -fc '%a * %S / 1024' "$dir") || exit
echo $(($room))
[ -w "$dir" ] && echo yes || echo no"""
    return Fact(f"disk {folder}", snippet, parse_disk, takes=2)


# A command goes on when its connection or its controller is gone; the transport marks each in its environment. Anybody may
# set a variable: those of root count, and those of the user who is logged in.
BUSY = Fact(
    "busy",
    r"""for file in $(grep -lzsE '^LODGER_COMMAND=' /proc/[0-9]*/environ); do
    uid=$(awk '/^Uid:/ {print $2; exit}' "${file%environ}status" 2>/dev/null)
    [ "$uid" = 0 ] || [ "$uid" = "${SUDO_UID:-0}" ] || continue
    mark=$({ tr '\0' '\n' < "$file"; } 2>/dev/null | sed -n 's/^LODGER_COMMAND=//p')
    [ -z "$mark" ] || [ "$mark" = "$LODGER_COMMAND" ] ||
        { printf 'busy %s\n' "$(tr '\0\n' '  ' < "${file%environ}cmdline" | cut -c1-200)"; } 2>/dev/null
done
"""
    f"systemctl list-units --plain --no-legend --state=active,activating,deactivating '{paths.STEP}*' | sed 's/^/busy /'",
    lambda text: [line.removeprefix("busy ") for line in text.split("\n") if line.startswith("busy ")],
    takes=12,
)
