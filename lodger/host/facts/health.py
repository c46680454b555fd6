"""What can be read of a host's health besides what a run asks for: clock, links, topology, clocks, memory errors, log, mounts.

Whatever is asked here may hang, as a dead mount or a GPU that fell off the bus does: :func:`bounded` bounds each fact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from lodger.host.command import quote
from lodger.host.facts.base import Fact

T = TypeVar("T")

KILLED = 137
"""Exit code of a fact that was cut off (128 and SIGKILL)."""
_MOUNT_ANSWERS = 3  # seconds in which a mount that lives says how much room it has


def bounded(fact: Fact[T], seconds: float = 10.0) -> Fact[T]:
    """Return ``fact`` cut off after ``seconds``; its exit code is then :data:`KILLED`.

    SIGKILL also ends `timeout` itself, so that it does not wait for a process that the kernel keeps in a dead call.
    """
    return replace(fact, snippet=f"timeout -s KILL {seconds:g} sh -c {quote([fact.snippet])}")


# ---------------------------------------------------------------- clock and boot

CLOCK = Fact("clock", "date +%s.%N", float, first=True)


@dataclass(frozen=True)
class TimeService:
    """What keeps the clock right: whether something should, and whether it does; None where the host does not say."""

    wanted: bool | None
    synchronized: bool | None


def _time_service(text: str) -> TimeService:
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    yes = {"yes": True, "no": False}
    return TimeService(yes.get(said.get("NTP", "")), yes.get(said.get("NTPSynchronized", "")))


TIME_SERVICE = Fact("time service", "timedatectl show -p NTP -p NTPSynchronized 2>/dev/null || true", _time_service)

CGROUP = Fact("cgroup", "stat -fc %T /sys/fs/cgroup", lambda text: 2 if text.strip() == "cgroup2fs" else 1)


@dataclass(frozen=True)
class DriverOnDisk:
    """What the next load of the driver would take: versions of module and library ("" for none), and when they came.

    ``changed`` and ``booted`` (when systemd began) are seconds since 1970 by the host's clock, ``changed`` 0 where nothing is.
    """

    module: str
    library: str
    changed: float
    booted: float


def _on_disk(text: str) -> DriverOnDisk:
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    booted = float(said["now"]) - float(said["uptime"]) + float(said["userspace"] or 0) / 1e6
    changed = max((float(time) for time in said["changed"].split()), default=0.0)
    return DriverOnDisk(said["module"], said["library"].rpartition(".so.")[2], changed, booted)


ON_DISK = Fact(
    "driver on disk",
    """echo "module=$(modinfo -F version nvidia 2>/dev/null)"
library=
for link in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1 /usr/lib/libnvidia-ml.so.1; do
    [ -e "$link" ] && library=$(readlink -f "$link") && break
done
echo "library=$library"
echo "changed=$(stat -c %Z "$library" "$(modinfo -n nvidia 2>/dev/null)" 2>/dev/null | tr '\\n' ' ')"
echo "now=$(date +%s)"
echo "uptime=$(cut -d' ' -f1 /proc/uptime)"
echo "userspace=$(systemctl show -p UserspaceTimestampMonotonic | cut -d= -f2)\"""",
    _on_disk,
)


# ---------------------------------------------------------------- GPUs


def _rows(text: str, columns: int) -> list[list[str]]:
    """Return the fields of nvidia-smi's CSV; any other line is one of its remarks. Raises ValueError when there is no row."""
    fields = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    rows = [row for row in fields if len(row) == columns and row[0].isdigit()]
    if not rows:
        raise ValueError("no GPU is listed")
    return rows


def _number(field: str) -> int | None:
    """Return a number, None for what nvidia-smi puts where there is none: [N/A], [Not Supported], [Unknown Error]."""
    return int(field) if field.isdigit() else None


def _ask(fields: str) -> str:
    return f"nvidia-smi --query-gpu=index,{fields} --format=csv,noheader,nounits"


@dataclass(frozen=True)
class Link:
    """A GPU's place: PCI bus and device (``0a:00``), lanes in use and possible (None: not told), temperature in degrees C."""

    bus: str
    width: int | None
    widest: int | None
    temperature: int | None


def _links(text: str) -> dict[int, Link]:
    return {
        int(index): Link(_bus(bus), _number(width), _number(widest), _number(temperature))
        for index, bus, width, widest, temperature in _rows(text, 5)
    }


def _bus(bus: str) -> str:
    """Return ``0a:00`` of ``00000000:0A:00.0`` (nvidia-smi) and of ``0000:0a:00`` (the kernel's log)."""
    return ":".join(bus.lower().split(".")[0].split(":")[-2:])


# Not the link's generation: an idle GPU lowers it to save power.
LINKS = Fact("links", _ask("pci.bus_id,pcie.link.width.current,pcie.link.width.max,temperature.gpu"), _links, takes=60)

# The field has another name from driver 550 on, and one unknown field fails the whole question.
REASONS = Fact(
    "clock reasons",
    f"{_ask('clocks_event_reasons.active')} || {_ask('clocks_throttle_reasons.active')}",
    lambda text: {int(index): int(bits, 16) for index, bits in _rows(text, 2) if bits.startswith("0x")},
    takes=60,
)


@dataclass(frozen=True)
class MemoryErrors:
    """ECC errors of one GPU since its driver was loaded; None where it counts none."""

    corrected: int | None
    uncorrected: int | None


MEMORY_ERRORS = Fact(
    "memory errors",
    _ask("ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total"),
    lambda text: {int(index): MemoryErrors(_number(one), _number(other)) for index, one, other in _rows(text, 3)},
    takes=60,
)


@dataclass(frozen=True)
class Topology:
    """How GPUs reach each other, by pairs of their numbers: nvidia-smi's word for the path, and for peer access."""

    paths: Mapping[tuple[int, int], str]
    peers: Mapping[tuple[int, int], str]

    def bridged(self, gpus: tuple[int, ...]) -> bool:
        """Whether NVLink joins each of ``gpus`` with each other one."""
        return all(self.paths.get((one, other), "").startswith("NV") for one in gpus for other in gpus if one != other)

    def peered(self, gpus: tuple[int, ...]) -> bool:
        """Whether each of ``gpus`` reads the memory of each other one."""
        return all(self.peers.get((one, other)) == "OK" for one in gpus for other in gpus if one != other)


def _matrix(text: str) -> dict[tuple[int, int], str]:
    """Return the cells of one of `nvidia-smi topo`'s tables."""
    cells: dict[tuple[int, int], str] = {}
    heads: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        words = line.split()
        if not heads:
            heads = [word for word in words if re.fullmatch(r"(GPU|NIC)\d+", word)]
        elif words and (row := re.fullmatch(r"GPU(\d+)", words[0])):
            for head, cell in zip(heads, words[1:], strict=False):
                if head.startswith("GPU"):
                    cells[int(row[1]), int(head[3:])] = cell
    if not cells:
        raise ValueError("no table of GPUs")
    return cells


def _topology(text: str) -> Topology:
    paths, _, peers = text.partition("@peers\n")
    # Old drivers do not know the second question.
    return Topology(_matrix(paths), _matrix(peers) if "GPU" in peers else {})


TOPOLOGY = Fact("topology", "nvidia-smi topo -m || exit\necho @peers\nnvidia-smi topo -p2p r || true", _topology, takes=120)


# ---------------------------------------------------------------- the kernel's log


@dataclass(frozen=True)
class Xid:
    """A complaint of the NVIDIA driver: PCI bus and device of the GPU, its number in NVIDIA's list, the rest of the line.

    ``count`` is how often this GPU had this number; the rest is that of the last line.
    """

    bus: str
    number: int
    text: str
    count: int = 1


@dataclass(frozen=True)
class Repeated:
    """A kind of line: the last one, and how many there were."""

    last: str
    count: int = 1


@dataclass(frozen=True)
class KernelLog:
    """What of this boot's log is about hardware: ``source`` is journal, dmesg, or "" when neither can be read."""

    source: str
    xids: tuple[Xid, ...]
    lost: tuple[Repeated, ...]
    memory: tuple[Repeated, ...]


def _log(text: str) -> KernelLog:
    source, *lines = text.split("\n")
    xids: list[Xid] = []
    lost: list[Repeated] = []
    memory: list[Repeated] = []
    for line in filter(None, lines):
        count, _, said = line.partition("\t")
        if found := re.search(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:, *(.*))?", said):
            xids.append(Xid(_bus(found[1]), int(found[2]), (found[3] or "").strip(), int(count)))
        else:
            (lost if "NVRM" in said else memory).append(Repeated(said, int(count)))
    return KernelLog(source.removeprefix("source="), tuple(xids), tuple(lost), tuple(memory))


# The journal keeps what the kernel's own buffer has forgotten; where it has no kernel lines, the buffer is asked. A line that
# comes a thousand times hides no other: of each kind (for Xids, of each GPU and number) its count is printed and the last one.
KERNEL_LOG = Fact(
    "kernel log",
    r"""read_log() { journalctl -k -b -q --no-pager -o short-iso; }
if [ -n "$(journalctl -k -b -q --no-pager -n 1 2>/dev/null)" ]; then echo source=journal
elif dmesg >/dev/null 2>&1; then echo source=dmesg; read_log() { dmesg; }
else echo source=; read_log() { :; }
fi
read_log | grep -aE 'NVRM: (Xid \(PCI|.*fallen off the bus)|EDAC .*\b[CU]E\b|Hardware Error|Memory failure' | awk '
    match($0, /Xid \(PCI:[^)]*\): [0-9]+/) || match($0, /fallen off the bus|EDAC|Hardware Error|Memory failure/) {
        kind = substr($0, RSTART, RLENGTH); last[kind] = $0
        if (!count[kind]++) order[++kinds] = kind
    }
    END { for (n = 1; n <= kinds; n++) print count[order[n]] "\t" last[order[n]] }'""",
    _log,
    takes=100,
)


# ---------------------------------------------------------------- mounts


@dataclass(frozen=True)
class Mount:
    """A network mount: what is mounted, its kind, and why it does not answer ("" when it does)."""

    source: str
    kind: str
    trouble: str


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _network_mounts(text: str) -> dict[str, Mount]:
    mounts: dict[str, Mount] = {}
    for line in filter(None, text.split("\n")):
        code, source, where, kind, said = line.split(" ", 4)  # the message may have blanks, or be empty
        hung = f"no answer within {_MOUNT_ANSWERS} s"
        trouble = "" if code == "0" else hung if code == str(KILLED) else said.rpartition(": ")[2] or f"exit code {code}"
        mounts[_unescaped(where)] = Mount(_unescaped(source), kind, trouble)
    return mounts


# Each is asked at the same time as the others, by a process of its own: one that hangs is left behind, and holds no pipe that
# somebody reads to its end. An automount point is not asked: that would mount it. printf %b turns \040 into a blank.
NETWORK_MOUNTS = Fact(
    "network mounts",
    rf"""while read -r source where kind rest; do
    case $kind in autofs|fuse.lxcfs|fuse.portal|fuse.gvfsd-fuse|fuse.snapfuse|fuse.squashfuse) continue ;; esac
    case "$kind $source" in
        nfs*|cifs*|smb*|ceph*|lustre*|beegfs*|glusterfs*|9p*|afs*|gpfs*|fuse.*|*:/*|'* //'*) ;;
        *) continue ;;
    esac
    {{
        path=$(printf %b "$where") said=
        timeout -s KILL {_MOUNT_ANSWERS} stat -f -- "$path" >/dev/null 2>&1
        code=$?
        case $code in 0|{KILLED}) ;; *) said=$(timeout -s KILL {_MOUNT_ANSWERS} stat -f -- "$path" 2>&1 | tail -n 1) ;; esac
        printf '%s\n' "$code $source $where $kind $said"
    }} &
done < /proc/mounts
wait""",
    _network_mounts,
    takes=30,
)

# ---------------------------------------------------------------- room

DOCKER_ROOM = Fact(
    "room for images",
    """dir=$(docker info --format '{{.DockerRootDir}}' 2>/dev/null)
[ -d "$dir" ] || dir=/var/lib/docker
while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
df -Pk "$dir" | awk 'NR == 2 {print $4}'""",
    lambda text: int(text) * 1024,
)
