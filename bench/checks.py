"""What each side of bench.deploy looks at in a run that finds nothing to do. A side that asks less may well be faster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lodger.terminal import table

SIDES = ("Lodger", "floor", "pyinfra", "Ansible, both", "ssh")
YES, READS, NO = "yes", "reads", "-"


@dataclass(frozen=True)
class Row:
    """One thing to look at: the states of a deploy that ask it (none: every run does), and what each of SIDES does."""

    what: str
    states: tuple[str, ...]
    cells: tuple[str, ...]


_ALL = (YES, READS, YES, YES, YES)
_OURS = (YES, READS, NO, NO, NO)
_ONLY = (YES, NO, NO, NO, NO)

ROWS = (
    Row("the host's key is the known one", (), (YES,) * 5),
    Row("it is the machine that the inventory names (machine-id)", (), _OURS),
    Row("nobody else is at it: lock taken and given back, no command of a lost connection", (), _ONLY),
    Row("no earlier run is unfinished", (), _OURS),
    Row("the files are what the inventory says now: read, linted, rendered; others are given them", (), _ONLY),
    Row("what is deployed is not newer than this checkout", (), _OURS),
    Row("Docker, Compose, GPU hook, curl; room on disks; driver, number and memory of GPUs", ("host_fit",), _OURS),
    Row("the images, by digest", ("image_present",), _OURS),
    Row("the weights: all files that a fetch recorded, else the size", ("weights_present",), _OURS),
    Row("files of the release: content, owner, mode (Lodger: of its manifest, what it says)", ("release_staged",), _ALL),
    Row("no file too many in it", ("release_staged",), _OURS),
    Row("the keys of its pools", ("key_in_place",), _OURS),
    Row("nothing is left of services that the inventory no longer names", ("service_gone", "leaver_drained"), _OURS),
    Row("replaced neighbours are stopped, and stay so at a boot", ("neighbour_replaced",), _OURS),
    Row("installed units: content", ("service_installed",), _ALL),
    Row("installed units: owner, mode", ("service_installed",), (NO, READS, YES, YES, YES)),
    Row("units are enabled", ("service_installed",), _ALL),
    Row("no drop-in changes a unit, its files are those of this release", ("service_installed",), _OURS),
    Row("units run", ("worker_ready", "router_ready"), _ALL),
    Row(
        "the containers are of this configuration, and answer /health at their own address",
        ("worker_ready", "router_ready", "worker_drained", "gpus_free"),
        _OURS,
    ),
    Row("these very containers passed the smoke checks, by their record", ("smoke_passed",), _OURS),
    Row("the pool: routers send to workers that serve, and to nobody else", ("worker_joined", "pool_complete"), _OURS),
    Row("the host is recorded to run this release", ("release_current",), _OURS),
    Row("no release and no key is kept longer than needed", ("old_releases_pruned",), _OURS),
    Row("what belongs to others, to compare it after a change", (), (READS, READS, NO, NO, NO)),
    Row("the run is written down", (), _ONLY),
    Row("what differs would be put right", (), (YES, NO, YES, YES, YES)),
    Row("... refused before the first change where it cannot be, read again, undone where it fails", (), _ONLY),
)


def shown(states: Collection[str]) -> str:
    """Return the table of what is looked at; ``states`` are those of the run, as Lodger names them."""
    names = {name.partition("(")[0] for name in states}
    known = {name for row in ROWS for name in row.states}
    rows = [row for row in ROWS if not row.states or names & set(row.states)]
    unknown = [Row(name, (name,), _OURS) for name in sorted(names - known)]
    return table([("", *SIDES), *((row.what, *row.cells) for row in [*rows, *unknown])])
