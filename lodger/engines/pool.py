"""Who is behind a pool's routers: what routers list, what workers say they serve, and what an engine is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lodger.engines.client import Client
from lodger.host.command import Command
from lodger.host.facts.base import Fact


class OtherKey(dict[str, Any]):
    """What is learnt of a router or worker that asks for another key than the host has: nothing but that."""


RouterList = Mapping[str, Mapping[str, bool] | None]
"""Router's URL -> worker's URL -> whether the router counts it as healthy; None for one that does not answer, or OtherKey."""

Identities = Mapping[str, Mapping[str, str]]
"""Worker's URL -> what it serves, by its engine's names; empty for one that does not answer, or OtherKey."""


@dataclass(frozen=True)
class RouterEntry:
    """A worker's place at one router: the router's URL as the worker's host reaches it, and how the router names the worker.

    ``changing`` says whether this command changes the router too.
    """

    router: str
    worker: str
    changing: bool = False


@dataclass(frozen=True)
class PoolMember:
    """A worker of the pool: what to call it, its URL from here, and whether this command changes it too."""

    name: str
    url: str
    changing: bool = False


class PoolApi(Protocol):
    """How one engine's workers and routers are asked, and told. ``key`` is the file of the header with the key, "" for none."""

    def rotation_fact(self, routers: Sequence[str], key: str) -> Fact[RouterList]:
        """Return the fact what each of ``routers`` (base URLs) lists."""

    def identities_fact(self, urls: Sequence[str], key: str) -> Fact[Identities]:
        """Return the fact what the worker at each of ``urls`` serves."""

    def differences(self, found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
        """Return where ``found`` serves something else than ``wanted``; what either does not say is not compared."""

    def start_s(self, said: Mapping[str, str]) -> float | None:
        """Return how long the last start of a worker took (s), by what it says of itself; None where it does not say."""

    def describe_script(self, url: str, key: str) -> str:
        """Return sh that prints what the worker at ``url`` says of itself."""

    def differs_script(self) -> str:
        """Return a sh command: whether a worker, whose description it reads, serves something else than ``$own`` says."""

    def leave(self, entry: RouterEntry, key: str) -> Command:
        """Return the command that takes a worker off a router's list; its running streams go on."""

    def join(self, entry: RouterEntry, key: str) -> Command:
        """Return the command that puts a worker on a router's list."""

    def drained(self, url: str, key: str, patience: int) -> Command:
        """Return the command that waits until the worker at ``url`` has no request left, ``patience`` seconds at most."""

    def healthy(self, client: Client) -> int:
        """Return how many workers a router believes in."""
