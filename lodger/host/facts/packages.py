"""What dpkg, apt, dkms and the kernel say about an NVIDIA driver: facts, and decisions over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lodger.host import paths
from lodger.host.command import quote
from lodger.host.facts.base import Fact

CACHE = paths.DRIVER_CACHE
# Our own holds change with the driver, and a version within a branch may go down; who else would be touched is a refusal.
ASKED = ("-q", "--allow-change-held-packages", "--allow-downgrades")
# What every use of apt-get has in common. As its own user, apt would leave a folder of that user's among our files.
APT = (*ASKED, "-o", f"Dir::Cache::archives={CACHE}", "-o", "APT::Sandbox::User=root")
# Compute only: a headless host needs no GL or X11, and the metapackage that would bring them cannot be satisfied.
STACK = ("nvidia-dkms-{0}", "nvidia-kernel-source-{0}", "libnvidia-compute-{0}", "nvidia-utils-{0}")

# What belongs to a driver: packages with a branch in their name, and the few that go with any. An ERE, for grep reads it too.
OF_DRIVER = (
    "(lib)?nvidia-.*-[0-9]{3}(-.*)?|cuda-drivers(-.*)?"
    "|(xserver-xorg-video-nvidia|linux-(modules|objects|signatures)-nvidia)-[0-9]{3}(-.*)?"
    "|nvidia-(modprobe|settings|persistenced|xconfig|firmware)|libnvidia-cfg1|libxnvctrl0"
)


def of_driver(name: str) -> bool:
    """Return whether the package ``name`` belongs to a driver, of whatever branch."""
    return re.fullmatch(OF_DRIVER, name) is not None


def branch_of(name: str) -> str:
    """Return the branch in the name of a driver's package, "" where there is none."""
    found = re.search(r"-(\d{3})(?:-|$)", name)
    return found[1] if found is not None and of_driver(name) else ""


def branch(version: str) -> str:
    """Return the branch of a driver version: ``580`` of ``580.126.09``."""
    return version.partition(".")[0]


def stack(version: str) -> tuple[str, ...]:
    """Return the packages of the compute stack for a driver version, by name."""
    return tuple(name.format(branch(version)) for name in STACK)


@dataclass(frozen=True)
class Package:
    """An installed (or half installed) package: dpkg's two-letter status, version, and apt's marks.

    ``held``: apt leaves it at its version; ``auto``: it came as a dependency, and may go with what needed it.
    """

    name: str
    status: str
    version: str
    held: bool
    auto: bool = False

    @property
    def well(self) -> bool:
        """Whether it is installed and configured."""
        return self.status in {"ii", "hi"}


@dataclass(frozen=True)
class Dpkg:
    """The package system: NVIDIA's packages by name, what dpkg and apt complain of, and who holds their lock."""

    packages: Mapping[str, Package]
    complaint: str
    busy: str

    def at(self, version: str) -> bool:
        """Whether the compute stack of driver ``version`` is installed, held, and nothing of another branch is in its way."""
        mine = [self.packages.get(name) for name in stack(version)]
        return all(one is not None and one.well and one.held and one.version.startswith(version) for one in mine)


def _dpkg(text: str) -> Dpkg:
    parts = dict(re.findall(r"^@(\w+)\n(.*?)(?=^@|\Z)", text, re.MULTILINE | re.DOTALL))
    held, auto = (set(parts.get(mark, "").split()) for mark in ("held", "auto"))  # an earlier run's ledger may have fewer
    packages = {}
    for line in parts["packages"].splitlines():
        status, name, version = line.split("|")
        packages[name] = Package(name, status.strip(), version, name in held, name in auto)
    return Dpkg(packages, " ".join(parts["complaint"].split()), parts["busy"].strip())


# The lock is a record lock: /proc/locks says who holds it without touching it. And apt is to take none, and to write no cache.
DPKG = Fact(
    "dpkg",
    r"""echo @packages
dpkg-query -W -f '${db:Status-Abbrev}|${Package}|${Version}\n' 'nvidia-*' 'libnvidia-*' 'cuda-drivers*' libxnvctrl0 \
    'xserver-xorg-video-nvidia-*' 'linux-*-nvidia-*' 2>/dev/null || true
echo @held
apt-mark showhold
echo @auto
awk '/^Package: / {name = $2} /^Auto-Installed: 1/ {print name}' /var/lib/apt/extended_states 2>/dev/null
echo @complaint
dpkg --audit 2>&1
apt-get check -qq -o Debug::NoLocking=true -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= 2>&1 | grep -v '^W:' | head -n 3
echo @busy
for lock in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock; do
    inode=$(stat -c %i "$lock" 2>/dev/null) || continue
    pid=$(awk -v inode=":$inode" 'substr($6, length($6) - length(inode) + 1) == inode {print $5; exit}' /proc/locks)
    [ -z "$pid" ] || { echo "pid $pid ($(tr '\0' ' ' < "/proc/$pid/cmdline" 2>/dev/null))"; break; }
done
true""",
    _dpkg,
    takes=1000,
)


def candidates_fact(version: str) -> Fact[dict[str, str]]:
    """Return the fact which packages of the stack apt can install as driver ``version``: name -> package version."""
    names = stack(version)

    def parse(text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in text.splitlines():
            fields = [field.strip() for field in line.split("|")]
            if len(fields) == 3 and fields[0] in names and fields[1].startswith(version):
                found.setdefault(fields[0], fields[1])
        return found

    return Fact(f"candidates {version}", f"apt-cache madison {quote(names)} 2>/dev/null || true", parse, takes=300)


@dataclass(frozen=True)
class PackageChange:
    """What apt would do to a package: its version now ("" for one that is new), and then ("" for one that is removed)."""

    name: str
    now: str
    then: str


@dataclass(frozen=True)
class Simulation:
    """What an installation would come to, by apt's own word, and why it could not be ("" where it could)."""

    changes: tuple[PackageChange, ...]
    complaint: str


_STEP = re.compile(r"(?:Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?")


def simulated(text: str) -> Simulation:
    """Return what ``apt-get -s`` printed, as values."""
    found = [step for line in text.splitlines() if (step := _STEP.match(line))]
    changes = tuple(
        PackageChange(step[1], step[2] or "", (step[3] or "") if step[0].startswith("Inst") else "") for step in found
    )
    unmet = re.findall(r"^ \S+ : \w+: .*|^E: .*", text, re.MULTILINE)
    return Simulation(changes, "; ".join(line.strip() for line in unmet[:4]))


def simulation_fact(version: str) -> Fact[Simulation]:
    """Return the fact what the installation of the stack of driver ``version`` would do. apt locks and writes nothing."""
    asked = [*ASKED, "-o", "Debug::NoLocking=true", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
    argv = ["apt-get", "-s", *asked, "install", *(f"{name}={version}*" for name in stack(version))]
    return Fact(f"installation of {version}", f"{quote(argv)} || true", simulated, takes=1000)


@dataclass(frozen=True)
class Kernel:
    """The running kernel: release, whether its headers are there, NVIDIA modules built for it (version), modules loaded.

    ``modules`` is module -> those that use it, as lsmod has it, with the number of users besides.
    """

    release: str
    headers: bool
    built: tuple[str, ...]
    modules: Mapping[str, tuple[int, tuple[str, ...]]]


def _kernel(text: str) -> Kernel:
    parts = dict(re.findall(r"^@(\w+)\n(.*?)(?=^@|\Z)", text, re.MULTILINE | re.DOTALL))
    release = parts["release"].strip()
    built = re.findall(rf"^nvidia[/,]\s*([\d.]+),\s*{re.escape(release)}\b.*:\s*installed", parts["dkms"], re.MULTILINE)
    modules = {}
    for line in parts["modules"].splitlines()[1:]:
        name, _, count, *users = line.split()
        modules[name] = (int(count), tuple(user for user in "".join(users).split(",") if user and user != "-"))
    return Kernel(release, parts["headers"].strip() == "yes", tuple(built), modules)


KERNEL = Fact(
    "kernel modules",
    """echo @release
uname -r
echo @headers
[ -e "/lib/modules/$(uname -r)/build" ] && echo yes || echo no
echo @dkms
dkms status 2>/dev/null || true
echo @modules
lsmod""",
    _kernel,
    takes=200,
)


def unload_order(modules: Mapping[str, tuple[int, tuple[str, ...]]]) -> list[str]:
    """Return the modules to remove, users first: everything that uses ``nvidia``, directly or not, and it last."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order or name not in modules:
            return
        for user in modules[name][1]:
            visit(user)
        order.append(name)

    for name in sorted(name for name in modules if name == "nvidia" or name.startswith("nvidia_")):
        visit(name)
    # `nvidia` is used by all others, so it comes last whatever lsmod says of them.
    return [name for name in order if name != "nvidia"] + [name for name in order if name == "nvidia"]


def _cached(text: str) -> dict[tuple[str, str], str]:
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {(name, version): path for name, version, path in lines}


# Which packages lie in the cache: (name, version) -> file.
CACHED = Fact(
    "cached packages",
    f"""find {CACHE} -name partial -prune -o -name '*.deb' -print 2>/dev/null | while read -r deb; do
    dpkg-deb -W --showformat='${{Package}}|${{Version}}|' "$deb" && echo "$deb"
done
true""",
    _cached,
)


def pinned(candidates: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return ``name=version`` for each of ``names``, as apt-get takes it."""
    return [f"{name}={candidates[name]}" for name in names]
