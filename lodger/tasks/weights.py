"""The verb that brings weights onto hosts."""

from __future__ import annotations

from lodger.errors import UsageError
from lodger.tasks.options import DRY_RUN, HOSTS, Asked, chosen, verb
from lodger.tasks.output import finish

# Modules that take their time are imported inside the tasks: `./ops --list` answers at once.
# ruff: noqa: PLC0415


@verb(
    *HOSTS,
    DRY_RUN,
    help={
        "model": "NAME[,NAME]; without it, those that the host's workers need",
        "from": "a host that has the weights, and serves them to this one",
        "verify": "hash every file again and compare it with the manifest",
        "replace": "fetch files again whose content differs",
        "cancel": "stop a fetch; what is there is kept",
    },
)
def fetch(
    asked: Asked,
    model: str | None = None,
    from_: str | None = None,
    verify: bool = False,
    replace: bool = False,
    cancel: bool = False,
) -> None:
    """Bring weights onto hosts: pinned, resumed, every file verified; it goes on when you disconnect."""
    from lodger.weights.fetch import FetchOptions
    from lodger.weights.session import fetch as fetch_all

    hosts = asked.hosts
    giver = chosen(asked.fleet, from_) if from_ else []
    if len(giver) > 1 or any(one in hosts for one in giver):
        raise UsageError("--from takes one host, which is not one of --host", hint="--host node2 --from node1")
    if sum((verify, cancel, bool(from_))) > 1 or (replace and (verify or cancel)):
        raise UsageError("--verify, --cancel and --from or --replace cannot be used together", hint="use one after the other")
    options = FetchOptions(verify=verify, replace=replace, cancel=cancel, dry_run=asked.dry_run)
    finish(fetch_all(asked.fleet, hosts, model, options, giver[0] if giver else None), as_json_array=asked.json)
