"""A worker's GPUs are free for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from lodger.host import facts, nvidia
from lodger.host.command import Command, run
from lodger.host.facts.base import Fact, Facts
from lodger.host.ownership import Owner, is_driver_daemon, is_ours, names, owners
from lodger.release.service import Service
from lodger.states.base import Blocker, NoUndo
from lodger.states.registry import state
from lodger.states.service_base import UP, ServiceState
from lodger.states.target import Target

Promised = Callable[[int], int]
"""GPU -> memory (MiB) that neighbours may use while workers serve: Host.reserved_mib."""


@state("gpus_free", each="worker", needs_running=True)
class GpusFree(ServiceState):
    """The worker's GPUs are free for it: its configuration runs on them already, or only declared neighbours use them.

    The engine sizes its pools from the memory that is free at its start, and does not say when that is too little. So the
    memory of an earlier process must really be free; only what the inventory reserves for neighbours may be in use.
    """

    def __init__(
        self, service: Service, host: str, *, neighbours: Collection[Owner], promised: Promised, replaced: Sequence[Owner]
    ) -> None:
        """Take the service, its host, the neighbours that may share its GPUs and with how much, and those being replaced."""
        super().__init__(service, host)
        self.name = f"gpus_free({service.name})"
        self._neighbours, self._promised, self._replaced = frozenset(neighbours), promised, frozenset(replaced)
        self.provides = frozenset({f"{service.container} off its old GPUs"})
        self.facts: tuple[Fact[Any], ...] = (*facts.FOOTPRINT, facts.DRIVER, self._unit)
        self.deadline = 180.0

    @classmethod
    def of(cls, target: Target, item: Service) -> GpusFree:
        """Return the state for ``item``."""
        if target.options.patience:
            return GpusWaitedFor(
                item,
                target.host.name,
                neighbours=target.shares_gpus,
                promised=target.host.reserved_mib,
                replaced=target.replaced,
                patience=target.options.patience,
            )
        promised = target.host.reserved_mib
        return cls(item, target.host.name, neighbours=target.shares_gpus, promised=promised, replaced=target.replaced)

    def _strangers(self, read: Facts) -> list[tuple[facts.Process, Owner]]:
        """Return the processes on these GPUs that are neither ours nor of a declared neighbour."""
        who = owners(read)
        own = self._container(read)
        found = []
        for process in read[facts.PROCESSES].values():
            owner = who[process.pid]
            mine = own is not None and process.container == own.id
            known = mine or is_driver_daemon(process) or names(owner, read) & self._neighbours
            if set(process.gpus) & set(self.service.gpus) and not known:
                found.append((process, owner))
        return found

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return what uses the GPUs or the port and is not in the inventory."""
        found = []
        for process, owner in self._strangers(read):
            if owner.kind == "unit" and is_ours(owner, read, self.host):
                continue  # a step of ours: it ends by itself
            where = ", ".join(str(index) for index in process.gpus if index in self.service.gpus)
            what = f"GPU {where} is held by pid {process.pid} of user {process.user} ({owner})"
            hint = f"ask {process.user}, or declare it in the host file under `neighbours:`"
            found.append(self._taken(owner, read, what, f"its command is `{process.command[:120]}`", hint))
        return [*found, *self._port_taken(read)]

    def missing(self, read: Facts) -> str:
        """Return what is still on the GPUs."""
        if self._runs_this(read):
            return ""
        if self._runs(read):
            return f"{self.service.name} runs another configuration"
        strangers = self._strangers(read)
        if strangers:
            process, owner = strangers[0]
            first = min(set(process.gpus) & set(self.service.gpus))
            return f"GPU {first} is held by pid {process.pid} ({owner})"
        mine = [gpu for gpu in read[facts.DRIVER].gpus if gpu.index in self.service.gpus]
        return next(filter(None, (nvidia.excess(gpu.index, gpu.used, self._promised(gpu.index)) for gpu in mine)), "")

    def stops(self, read: Facts) -> list[str]:
        """Return the service when it runs another configuration."""
        return [self.service.unit] if self._runs(read) and not self._runs_this(read) else []

    def act(self, read: Facts) -> list[Command]:
        """Return the stop of our own outdated worker; nobody else is stopped."""
        unit = read[self._unit]
        if self._runs(read) or (unit is not None and unit.active in UP):
            why = f"stop {self.service.name} after its running requests"
            return [run("systemctl", "stop", self.service.unit, why=why, timeout=self.service.stop + 60)]
        return []

    def undo(self, before: Facts, now: Facts) -> NoUndo:
        """Leave the start to the state that puts the files back."""
        del before, now
        return NoUndo("service_installed starts it again with its previous files")


class GpusWaitedFor(GpusFree):
    """The worker's GPUs are its own, once those who were given them are off; they are waited for, not refused."""

    def __init__(
        self,
        service: Service,
        host: str,
        *,
        neighbours: Collection[Owner],
        promised: Promised,
        replaced: Sequence[Owner],
        patience: float,
    ) -> None:
        """Take what GpusFree takes, and how long to wait (s)."""
        super().__init__(service, host, neighbours=neighbours, promised=promised, replaced=replaced)
        self.deadline = patience
        self.only_waits = True

    def blockers(self, read: Facts) -> list[Blocker]:
        """Return who is on the port: nobody was promised that."""
        return self._port_taken(read)

    def progress(self, read: Facts) -> str:
        """Return who is waited for."""
        held = [
            f"waiting for pid {process.pid} of user {process.user} ({owner}), `{process.command[:60]}`"
            for process, owner in self._strangers(read)
        ]
        return "; ".join(held[:3]) or self.missing(read)
