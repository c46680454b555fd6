"""The goal of a driver upgrade, and what its states share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lodger.host import facts, nvidia
from lodger.host.command import quote
from lodger.host.facts import packages
from lodger.host.facts.base import Fact, Facts
from lodger.host.facts.packages import DPKG, KERNEL, Package
from lodger.host.ownership import Owner, declared, is_driver_daemon, is_ours, names, owners, runs_without_unit
from lodger.inventory import Host
from lodger.states.base import Blocker

PATIENCE = 600.0  # seconds to wait for an apt or dpkg of somebody else
INSTALL = 3600.0  # seconds for dpkg with a module built for the running kernel
# No questions, and no needrestart: on Ubuntu servers it restarts whatever services it likes after each installation.
QUIETLY = "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1"
ROOM = 3 * 2**30  # bytes: both drivers' packages and what they unpack to


@dataclass(frozen=True)
class DriverGoal:
    """What is to be true at the end: driver ``version`` on a host with ``gpu_count`` GPUs."""

    host: str
    version: str
    gpu_count: int
    neighbours: frozenset[Owner]

    @classmethod
    def of(cls, host: Host) -> DriverGoal:
        """Return the goal that the host's file declares; any neighbour may have a GPU open, whatever its policy."""
        return cls(host.name, host.driver, host.gpus.count, frozenset(declared(host)))

    @property
    def reads(self) -> tuple[Fact[Any], ...]:
        """Return the facts that :meth:`reached` asks for."""
        return (facts.DRIVER, DPKG)

    def loaded(self, read: Facts) -> str:
        """Return how the loaded driver differs from the declared one, "" when module, library and GPUs agree."""
        driver = read[facts.DRIVER]
        if driver.loaded != self.version:
            return f"the kernel has {driver.loaded or 'no NVIDIA module'}, not {self.version}"
        if driver.complaint:
            return driver.complaint
        if driver.reported != self.version:
            return f"nvidia-smi reports {driver.reported}, not {self.version}"
        return "" if len(driver.gpus) == self.gpu_count else f"nvidia-smi shows {len(driver.gpus)} of {self.gpu_count} GPUs"

    def installed(self, read: Facts) -> str:
        """Return how the installed driver differs from the declared one."""
        dpkg = read[DPKG]
        for name in packages.stack(self.version):
            package = dpkg.packages.get(name)
            if package is None or not package.well or not package.version.startswith(self.version):
                return f"{name} is not installed at {self.version}"
        return f"dpkg has unfinished work: {dpkg.complaint}" if dpkg.complaint else ""

    def held(self, read: Facts) -> str:
        """Return the first package of the driver that the next upgrade of the host would change."""
        there = read[DPKG].packages
        free = [name for name in packages.stack(self.version) if name in there and not there[name].held]
        return f"{free[0]} is not held at its version" if free else ""

    def reached(self, read: Facts) -> bool:
        """Whether everything is done that needs free GPUs; holding packages does not."""
        return not self.loaded(read) and not self.installed(read)

    def holders(self, read: Facts) -> list[tuple[facts.Process, Owner]]:
        """Return every process with a GPU open and its owner, without the driver's own daemons, which are stopped with it."""
        who = owners(read)
        return [
            (process, who[process.pid])
            for process in read[facts.PROCESSES].values()
            if process.devices and (runs_without_unit(process) or not is_driver_daemon(process))
        ]

    def strangers(self, read: Facts) -> list[Blocker]:
        """Return the processes with a GPU open that are neither ours nor in the inventory."""
        found = []
        for process, owner in self.holders(read):
            if runs_without_unit(process):
                what = f"pid {process.pid} is a daemon of the driver ({process.program}) that its unit did not start"
                hint = f"kill {process.pid} on the host, and start the daemon's unit: no unit would start this process again"
                found.append(Blocker(what, "it has a GPU open, and was started by hand or by a script", hint))
                continue
            if is_ours(owner, read, self.host) or names(owner, read) & self.neighbours:
                continue
            what = f"pid {process.pid} of user {process.user} has a GPU open ({owner})"
            hint = f"ask {process.user} to stop it, or declare it: neighbours: {{{_declaration(owner)}}}"
            found.append(Blocker(what, f"its command is `{process.command[:120]}`", hint))
        return found


def _declaration(owner: Owner) -> str:
    kind = owner.kind if owner.kind != "process" else "unit"
    name = owner.name if owner.kind != "process" else "NAME.service"
    return f"{name}: {{kind: {kind}, policy: pause}}"


def driver_packages(read: Facts) -> list[Package]:
    """Return the driver's packages that are installed."""
    return [one for one in read[DPKG].packages.values() if one.well and packages.of_driver(one.name)]


def unload_script(kernel: packages.Kernel) -> str:
    """Return sh that stops the driver's daemons, which packages and udev start at any time, and unloads its modules."""
    order = packages.unload_order(kernel.modules)
    stop = quote(["systemctl", "stop", *nvidia.DAEMON_UNITS])
    return f"{stop} 2>/dev/null || true\n{quote(['rmmod', *order])}" if order else ":"


def load_script(kernel: packages.Kernel) -> str:
    """Return sh that loads every module that ``kernel`` had on the driver, those of others too; what is loaded stays."""
    order = packages.unload_order(kernel.modules)
    return quote(["modprobe", "-a", *reversed(order)]) if order else ":"


def modules_differ(before: Facts, now: Facts) -> str:
    """Return how the loaded modules differ from those of ``before``."""
    was, loaded = before[facts.DRIVER].loaded, now[facts.DRIVER].loaded
    if loaded != was:
        return f"the kernel has {loaded or 'no NVIDIA module'}, not {was or 'none'}"
    return modules_gone(before, now)


def modules_gone(before: Facts, now: Facts) -> str:
    """Return which modules of ``before`` are not loaded now."""
    gone = [name for name in packages.unload_order(before[KERNEL].modules) if name not in now[KERNEL].modules]
    return f"not loaded again: {', '.join(gone)}" if gone else ""
