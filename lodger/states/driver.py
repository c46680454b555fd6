"""A driver upgrade without a reboot: possible, downloaded with its way back, installed, loaded.

Every state on the way also holds once the goal does (the declared driver is installed, loaded and answers), so that a
second run finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lodger import facts, packages
from lodger.command import Command, detached, quote
from lodger.errors import StateFailed
from lodger.facts import Fact, Facts
from lodger.footprint import Owner, names, owners
from lodger.packages import APT, CACHE, CACHED, DPKG, KERNEL, Package
from lodger.states.base import Blocker, NoUndo, State
from lodger.states.paused import stopped_by_run

_PATIENCE = 600.0  # seconds that somebody else's apt or dpkg is waited for
_INSTALL = 3600.0  # seconds for dpkg with a module built for the running kernel
# No questions, and no needrestart: on Ubuntu servers it restarts whatever services it likes after each installation.
_QUIETLY = "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1"
_ROOM = 3 * 2**30  # bytes: both drivers' packages and what they unpack to


@dataclass(frozen=True)
class Upgrade:
    """What is to be true at the end: driver ``version`` on a host with ``gpu_count`` GPUs."""

    host: str
    version: str
    gpu_count: int
    neighbours: Mapping[Owner, int]

    @property
    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts that :meth:`reached` asks for."""
        return (facts.DRIVER, DPKG)

    def loaded(self, read: Facts) -> str:
        """Return in what the loaded driver is not the declared one, "" when module, library and GPUs agree."""
        driver = read[facts.DRIVER]
        if driver.loaded != self.version:
            return f"the kernel has {driver.loaded or 'no NVIDIA module'}, not {self.version}"
        if driver.complaint:
            return driver.complaint
        if driver.reported != self.version:
            return f"nvidia-smi reports {driver.reported}, not {self.version}"
        return "" if len(driver.gpus) == self.gpu_count else f"nvidia-smi shows {len(driver.gpus)} of {self.gpu_count} GPUs"

    def installed(self, read: Facts) -> str:
        """Return in what the installed driver is not the declared one."""
        dpkg = read[DPKG]
        for name in packages.stack(self.version):
            package = dpkg.packages.get(name)
            if package is None or not package.well or not package.version.startswith(self.version):
                return f"{name} is not installed at {self.version}"
        return f"dpkg is not at peace: {dpkg.complaint}" if dpkg.complaint else ""

    def held(self, read: Facts) -> str:
        """Return which installed package of the driver the next upgrade of the host would take along."""
        there = read[DPKG].packages
        free = [name for name in packages.stack(self.version) if name in there and not there[name].held]
        return f"{free[0]} is not held at its version" if free else ""

    def reached(self, read: Facts) -> bool:
        """Whether all is done for which the GPUs have to be free: a hold is set while everybody works."""
        return not self.loaded(read) and not self.installed(read)

    def holders(self, read: Facts) -> list[tuple[facts.Process, Owner]]:
        """Return everybody with a GPU open, but the driver's own daemons, each with its owner."""
        who = owners(read)
        return [
            (process, who[process.pid])
            for process in read[facts.PROCESSES].values()
            if process.devices and not is_daemon(process)
        ]

    def strangers(self, read: Facts) -> list[Blocker]:
        """Return who has a GPU open and is neither ours nor named in the inventory."""
        found = []
        containers = read[facts.CONTAINERS]
        for process, owner in self.holders(read):
            ours = owner.kind == "container" and containers[owner.name].labels.get("io.lodger.host") == self.host
            if ours or names(owner, read) & self.neighbours.keys():
                continue
            what = f"pid {process.pid} of user {process.user} has a GPU open ({owner})"
            hint = f"ask {process.user} to stop it, or declare it: neighbours: {{{_declaration(owner)}}}"
            found.append(Blocker(what, f"its command is `{process.command[:120]}`", hint))
        return found


def is_daemon(process: facts.Process) -> bool:
    """Whether ``process`` is one of the driver's own daemons."""
    return process.unit in {"nvidia-persistenced.service", "nvidia-powerd.service", "nvidia-fabricmanager.service"}


def _declaration(owner: Owner) -> str:
    kind = owner.kind if owner.kind != "process" else "unit"
    name = owner.name if owner.kind != "process" else "NAME.service"
    return f"{name}: {{kind: {kind}, policy: pause}}"


class UpgradePossible(State):
    """Nothing known stands in the way: packages to be had, kernel headers, room, a sound dpkg, and only known GPU users."""

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "upgrade_possible"
        self._goal = goal
        self._candidates = packages.candidates_fact(goal.version)
        self._simulation = packages.simulation_fact(goal.version)
        self._disk = facts.disk_fact("/var/lib/lodger")
        looks = (KERNEL, self._candidates, self._simulation, self._disk)
        self.facts = (facts.LEDGER, *goal.reads, *facts.FOOTPRINT, *looks)

    def missing(self, read: Facts) -> str:
        """Return the first thing in the way."""
        return next((blocker.what for blocker in self.blockers(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return everything in the way; nothing is, once the goal is reached."""
        if self._goal.reached(read):
            return []
        kernel, dpkg, found = read[KERNEL], read[DPKG], []
        if not kernel.headers:
            hint = f"apt-get install linux-headers-{kernel.release}"
            found.append(
                Blocker(f"the headers of the running kernel {kernel.release} are missing", "dkms could not build", hint)
            )
        offered = read[self._candidates]
        lacking = [name for name in packages.stack(self._goal.version) if name not in offered]
        if lacking:
            cause = f"apt-cache madison {lacking[0]} has no version {self._goal.version}"
            found.append(
                Blocker(f"apt cannot install driver {self._goal.version}", cause, "apt-get update, or add its repository")
            )
        # Somebody else's run is waited for; what a cut-off run of ours left is mended by a later state.
        if dpkg.complaint and not dpkg.busy and not read[facts.LEDGER]:
            found.append(Blocker("dpkg is not at peace", dpkg.complaint, "dpkg --configure -a; apt-get -f install"))
        elif not lacking and not dpkg.complaint and not dpkg.busy and (cause := read[self._simulation].complaint):
            hint = f"apt-get -s install {' '.join(packages.stack(self._goal.version))} tells more"
            found.append(Blocker(f"apt cannot install driver {self._goal.version}", cause, hint))
        disk = read[self._disk]
        if disk.free < _ROOM or not disk.writable:
            cause = f"{disk.free / 2**30:.1f} GiB are free, {_ROOM / 2**30:.0f} GiB are needed"
            found.append(Blocker("there is no room for two drivers", cause, "make room below /var"))
        return [*found, *self._goal.strangers(read)]


class DpkgFree(State):
    """Nobody else installs packages: an unattended upgrade that runs is waited for, and then it is a refusal."""

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "dpkg_free"
        self._goal = goal
        self.facts = goal.reads
        self.deadline = _PATIENCE
        self.only_waits = True

    def missing(self, read: Facts) -> str:
        """Return who holds dpkg's lock."""
        busy = read[DPKG].busy
        return f"dpkg is locked by {busy}" if busy and not self._goal.reached(read) else ""

    def act(self, read: Facts) -> list[Command]:
        """Return nothing: it only waits."""
        del read
        return []


class PackagesCached(State):
    """The new packages are on the host, and so are those they take the place of, which the undo needs."""

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "packages_cached"
        self._goal = goal
        self._candidates = packages.candidates_fact(goal.version)
        self._simulation = packages.simulation_fact(goal.version)
        self.facts = (facts.LEDGER, *goal.reads, self._candidates, self._simulation, CACHED)

    def _new(self, read: Facts) -> dict[str, str]:
        """Return what is installed: the stack, and what apt adds to it."""
        added = {change.name: change.then for change in read[self._simulation].changes if change.then}
        return added | read[self._candidates]

    def _old(self, read: Facts) -> list[Package]:
        """Return what was installed before this run, or the one it goes on from, and the new packages take the place of."""
        changed = {change.name for change in read[self._simulation].changes if change.now}
        return [
            one
            for one in driver_packages(stopped_by_run(read)[1] or read)
            if not one.version.startswith(self._goal.version) and (one.name in changed or packages.branch_of(one.name))
        ]

    def _lacking(self, read: Facts) -> tuple[dict[str, str], dict[str, str]]:
        there, cached = read[DPKG].packages, read[CACHED]
        new = {
            name: version
            for name, version in self._new(read).items()
            if (name, version) not in cached and (name not in there or there[name].version != version)
        }
        return new, {one.name: one.version for one in self._old(read) if (one.name, one.version) not in cached}

    def missing(self, read: Facts) -> str:
        """Return the first package that is not in the cache."""
        if self._goal.reached(read):
            return ""
        new, old = self._lacking(read)
        if new:
            return f"{next(iter(new))} is not downloaded"
        return next((f"the way back, {name} {version}, is not downloaded" for name, version in old.items()), "")

    def act(self, read: Facts) -> list[Command]:
        """Return both downloads, the way back first, and the removal of what neither way needs; nothing is installed."""
        new, old = self._lacking(read)
        needed = {*self._new(read).items(), *((one.name, one.version) for one in self._old(read))}
        needed |= {(one.name, one.version) for one in read[DPKG].packages.values()}
        spent = [path for package, path in read[CACHED].items() if package not in needed]
        why = "download the packages that are installed now: the way back"
        return [
            Command(f"{f'rm -f {quote(spent)}; ' if spent else ''}{_download(old)}", why=why, timeout=1800),
            Command(_download(new), why="download the new packages", timeout=1800),
        ]

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Keep them."""
        del before, now
        return NoUndo("downloaded packages change nothing, and the next try needs them")


def driver_packages(read: Facts) -> list[Package]:
    """Return the driver's packages that are installed."""
    return [one for one in read[DPKG].packages.values() if one.well and packages.of_driver(one.name)]


def _download(wanted: Mapping[str, str]) -> str:
    """Return sh that downloads the packages ``wanted``, of any version that apt still knows or has in its own cache."""
    pins = {name: quote([f"{name}={version}"]) for name, version in wanted.items()}
    get = quote(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root"])
    each = [f"{{ {get} {pin} || cp /var/cache/apt/archives/{quote([name])}_* .; }}" for name, pin in pins.items()]
    every = f"{get} {' '.join(pins.values())} || {{ {' && '.join(each)}; }}" if pins else ":"
    return f"mkdir -p {CACHE}/partial && cd {CACHE} && {{ {every}; }} && sync -f ."


@dataclass(frozen=True)
class Conflict:
    """A file that the package ``owner`` has and ``new`` brings; ``declared``: the new one says that it replaces the owner."""

    owner: str
    new: str
    path: str
    declared: bool


def _conflicts(text: str) -> tuple[Conflict, ...]:
    found = []
    for line in text.splitlines():
        owner, provides, new, replaces, path = line.split("|", 4)
        # A relation with a version in it may not hold, so that it counts as none.
        called = {owner, *(word.partition("(")[0].strip() for word in provides.split(","))}
        declared = (called & {word.strip() for word in replaces.split(",")}) - {""}
        found.append(Conflict(owner, new, path, bool(declared)))
    return tuple(found)


def conflicts_fact(version: str) -> Fact[tuple[Conflict, ...]]:
    """Return the fact which files of the downloaded packages of driver ``version`` another package owns.

    dpkg stops at each whose package the new one does not replace.
    """
    snippet = rf"""for deb in {CACHE}/*.deb; do
    [ -e "$deb" ] || continue
    case $(dpkg-deb -f "$deb" Version) in {quote([version])}*) ;; *) continue ;; esac
    new=$(dpkg-deb -f "$deb" Package) replaces=$(dpkg-deb -f "$deb" Replaces | tr -d '\n')
    dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | sed 's|^\./|/|' | xargs -r dpkg-query -S 2>/dev/null |
        sed -n 's|^\([^:,]*\)[^ ]*: \(.*\)|\1 \2|p' | while read -r owner path; do
        [ "$owner" = "$new" ] ||
            printf '%s|%s|%s|%s|%s\n' "$owner" "$(dpkg-query -W -f '${{Provides}}' "$owner")" "$new" "$replaces" "$path"
    done
done
true"""
    return Fact(f"file conflicts of {version}", snippet, _conflicts)


class OnlyDriverChanges(State):
    """What is installed takes the place of packages of the driver, and of nothing else."""

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "only_driver_changes"
        self._goal = goal
        self._simulation = packages.simulation_fact(goal.version)
        self._conflicts = conflicts_fact(goal.version)
        self.facts = (*goal.reads, self._simulation, self._conflicts)

    def missing(self, read: Facts) -> str:
        """Return the first package of others that would change."""
        return next((blocker.what for blocker in self.blockers(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return every package that apt would change, or whose files are in the way, and that is not of the driver."""
        if self._goal.reached(read):
            return []
        found = []
        for change in read[self._simulation].changes:
            if not packages.of_driver(change.name):
                what = "replace" if change.now and change.then else "remove" if change.now else "add"
                hint = (
                    f"install {change.name} first"
                    if what == "add"
                    else f"ask who uses {change.name}, and move it out of the way"
                )
                found.append(Blocker(f"apt would {what} {change.name}, which is not of the driver", "apt-get -s says so", hint))
        for one in read[self._conflicts]:
            if not one.declared and not packages.branch_of(one.owner):
                what = f"{one.owner} owns {one.path}, which {one.new} brings too"
                found.append(Blocker(what, hint=f"ask who installed {one.owner}"))
        return found


class DriverInstalled(State):
    """The compute stack of the declared driver is installed and held, its module built for the running kernel, dpkg at peace.

    What is loaded is not touched. The undo installs the old packages again and sees to it that their module is loaded.
    """

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "driver_installed"
        self._goal = goal
        self._candidates = packages.candidates_fact(goal.version)
        self._conflicts = conflicts_fact(goal.version)
        self._others = OnlyDriverChanges(goal)
        self.facts = (*self._others.facts, KERNEL, self._candidates, CACHED)
        self.undo_deadline = 120.0

    def missing(self, read: Facts) -> str:
        """Return what is not installed, held, built or at peace."""
        return self._lacking(read) or self._goal.held(read)

    def _lacking(self, read: Facts) -> str:
        if missing := self._goal.installed(read):
            return missing
        kernel, version = read[KERNEL], self._goal.version
        return "" if version in kernel.built else f"no module {version} is built for kernel {kernel.release}"

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return what of others would change: it came after the first look."""
        return self._others.blockers(read)

    def act(self, read: Facts) -> list[Command]:
        """Return one detached step: conflicts out of the way, install, mend, hold; only the hold where nothing else lacks."""
        hold = quote(["apt-mark", "hold", *packages.stack(self._goal.version)])
        if not self._lacking(read):
            return [Command(hold, why=f"hold driver {self._goal.version}")]
        offered = read[self._candidates]
        wanted = packages.pinned(offered, packages.stack(self._goal.version))
        # No --no-download: a dependency that the cache lacks is still to be had.
        install = quote(["apt-get", "install", "-y", *APT, "-o", "Dpkg::Options::=--force-confold", *wanted])
        new = packages.branch(self._goal.version)
        in_the_way = sorted({one.owner for one in read[self._conflicts] if not one.declared} - {""})
        in_the_way = [owner for owner in in_the_way if packages.branch_of(owner) not in {"", new}]
        remove = f"dpkg --remove --force-depends {quote(in_the_way)}\n" if in_the_way else ""
        script = f"""set -e
{_QUIETLY}
mend() {{
    if apt-get -s -q -f install | grep -E '^(Remv|Purg) ' | grep -vE '^[A-Z][a-z]+ ({packages.OF_DRIVER}) ' >&2; then
        echo 'to mend dependencies, apt would remove what is not of the driver' >&2
        exit 1
    fi
    apt-get -y -q -f install
}}
mkdir -p {CACHE}/partial
dpkg --configure -a || true
{remove}{install} || {{ dpkg --configure -a; mend; {install}; }}
dpkg --configure -a
mend
{hold}
dkms status"""
        return [detached("driver-install", script, why=f"install driver {self._goal.version}", timeout=_INSTALL)]

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return what brings the packages of before back, each by its own file, with their holds, and loads their module."""
        if before[DPKG].packages == now[DPKG].packages and not now[DPKG].complaint and not _unlike(before, now):
            return NoUndo("packages and modules are as they were")
        were, there = driver_packages(before), now[DPKG].packages
        known = {one.name for one in were}
        extra = sorted(
            one.name
            for one in there.values()
            if one.name not in known and packages.of_driver(one.name) and one.status[1:2] not in {"n", "c"}
        )
        gone = [
            one for one in were if one.name not in there or not there[one.name].well or there[one.name].version != one.version
        ]
        held, auto = [one.name for one in were if one.held], [one.name for one in were if one.auto]
        unhold = sorted({*extra, *packages.stack(self._goal.version)} - set(held))
        script = f"""set -e
{_QUIETLY}
apt-mark unhold {quote(unhold)} || true
{f"dpkg --purge --force-depends --force-remove-reinstreq {quote(extra)}" if extra else ":"}
{f"dpkg --install --force-confold --force-downgrade {quote(_files(gone, now))}" if gone else ":"}
dpkg --configure -a
{f"apt-mark hold {quote(held)}" if held else ":"}
{f"apt-mark auto {quote(auto)}" if auto else ":"}
{_load(before[KERNEL])}
nvidia-smi"""
        return [detached("driver-undo", script, why="bring the old driver back", timeout=_INSTALL)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return what of packages and loaded driver is not as before."""
        was, is_now = before[DPKG], now[DPKG]
        if is_now.complaint and not was.complaint:
            return f"dpkg is not at peace: {is_now.complaint}"
        for one in driver_packages(before):
            if is_now.packages.get(one.name) != one:
                return f"{one.name} is not as it was"
        if unlike := _unlike(before, now):
            return unlike
        return now[facts.DRIVER].complaint if not before[facts.DRIVER].complaint else ""


def _files(wanted: Sequence[Package], now: Facts) -> list[str]:
    """Return the files in the cache that are the packages ``wanted``; raise StateFailed for one that is not there."""
    lost = [one for one in wanted if (one.name, one.version) not in now[CACHED]]
    if lost:
        hint = f"put it there, then run this again; {CACHE} is where the way back lies"
        raise StateFailed(f"the way back, {lost[0].name} {lost[0].version}, is not in {CACHE}", hint=hint)
    return sorted(now[CACHED][one.name, one.version] for one in wanted)


class GpusReleased(State):
    """Nobody has a GPU open, or the goal is reached: only then can the module be unloaded."""

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "gpus_released"
        self._goal = goal
        self.facts = (*goal.reads, *facts.FOOTPRINT)
        self.deadline = 120.0

    def missing(self, read: Facts) -> str:
        """Return who still has a GPU open."""
        if self._goal.reached(read):
            return ""
        return next((f"pid {process.pid} ({owner}) still has a GPU open" for process, owner in self._goal.holders(read)), "")

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is neither ours nor named: they came after the first look."""
        return self._goal.strangers(read) if self.missing(read) else []

    def act(self, read: Facts) -> list[Command]:
        """Return nothing: the owners were stopped by the states before, and their processes only have to end."""
        del read
        return []


def _unload(kernel: packages.Kernel) -> str:
    """Return sh that unloads what is loaded, the driver's own daemon first: packages and udev start it again at any time."""
    order = packages.unload_order(kernel.modules)
    return f"systemctl stop nvidia-persistenced.service 2>/dev/null || true\n{quote(['rmmod', *order])}" if order else ":"


def _load(kernel: packages.Kernel) -> str:
    """Return sh that loads all that ``kernel`` had on the driver, other people's modules too; what is loaded stays."""
    order = packages.unload_order(kernel.modules)
    return quote(["modprobe", "-a", *reversed(order)]) if order else ":"


def _unlike(before: Facts, now: Facts) -> str:
    """Return in what the loaded modules are not those of ``before``."""
    was, loaded = before[facts.DRIVER].loaded, now[facts.DRIVER].loaded
    if loaded != was:
        return f"the kernel has {loaded or 'no NVIDIA module'}, not {was or 'none'}"
    return _gone(before, now)


def _gone(before: Facts, now: Facts) -> str:
    """Return which modules of ``before`` are not loaded now."""
    gone = [name for name in packages.unload_order(before[KERNEL].modules) if name not in now[KERNEL].modules]
    return f"not loaded again: {', '.join(gone)}" if gone else ""


class DriverLoaded(State):
    """The kernel runs the declared driver, and library and nvidia-smi agree with it."""

    def __init__(self, goal: Upgrade) -> None:
        """Take the goal."""
        self.name = "driver_loaded"
        self._goal = goal
        self.facts = (facts.LEDGER, *goal.reads, KERNEL, *facts.FOOTPRINT)
        self.deadline = 60.0

    def missing(self, read: Facts) -> str:
        """Return in what the loaded driver is not the declared one."""
        return self._goal.loaded(read)

    def act(self, read: Facts) -> list[Command]:
        """Return one detached step: unload users first, load the new module and them, make device nodes, ask nvidia-smi."""
        before = stopped_by_run(read)[1] or read
        script = f"""set -e
{_unload(read[KERNEL])}
modprobe nvidia
modprobe nvidia_uvm
{_load(before[KERNEL])}
if command -v nvidia-modprobe >/dev/null; then nvidia-modprobe -c 0 -u || true; fi
nvidia-smi"""
        return [detached("driver-load", script, why=f"load driver {self._goal.version}", timeout=300)]

    def evidence(self, read: Facts) -> str:
        """Return who holds what: processes, and users of the modules."""
        lines = [f"pid {process.pid} ({owner}): {' '.join(process.devices)}" for process, owner in self._goal.holders(read)]
        modules = read[KERNEL].modules
        lines += [
            f"module {name}: used {modules[name][0]} times {' '.join(modules[name][1])}"
            for name in packages.unload_order(modules)
        ]
        return "\n".join(lines)

    def undo(self, before: Facts, now: Facts) -> list[Command] | NoUndo:
        """Return the unloading of the new module; the old one is loaded once its packages are back.

        Where the new packages were there before this run, none are put back: the new module stays, and all that was loaded.
        """
        if before[DPKG].packages == now[DPKG].packages:
            if not _gone(before, now):
                return NoUndo("its packages were there before, and all modules are loaded")
            return [Command(_load(before[KERNEL]), why="load the modules again", timeout=120)]
        if now[facts.DRIVER].loaded != self._goal.version:
            return NoUndo("the new module is not loaded")
        return [detached("driver-unload", _unload(now[KERNEL]), why="unload the new module", timeout=120)]

    def undone(self, before: Facts, now: Facts) -> str:
        """Return that the new module is still loaded, or that a module is not loaded again."""
        if before[DPKG].packages == now[DPKG].packages:
            return _gone(before, now)
        return "the new module is still loaded" if now[facts.DRIVER].loaded == self._goal.version else ""
