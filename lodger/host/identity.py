"""Is this the machine that the inventory means? One answer, for everybody who is about to read or write there."""

from __future__ import annotations

from lodger.errors import Refused
from lodger.host.command import quote
from lodger.host.facts.machine import Machine


def refuse_other_machine(recorded: str | None, found: Machine) -> None:
    """Raise Refused when a machine is recorded and ``found`` is another one."""
    if recorded is not None and found.machine_id != recorded:
        cause = f"its machine-id is {found.machine_id}, the inventory says {recorded}"
        hint = "check `address:` in the host file, or `machine_id:` after a reinstallation"
        raise Refused("this is the wrong machine", cause=cause, hint=hint)


def refuse_unless_recorded(recorded: str | None, found: Machine) -> None:
    """Raise Refused unless the machine is recorded and ``found`` is it: only there anything is written."""
    if recorded is None:
        hint = f'if this is the right machine, write `machine_id: "{found.machine_id}"` into its host file'
        raise Refused("the identity of this machine is not recorded", cause=f"its machine-id is {found.machine_id}", hint=hint)
    refuse_other_machine(recorded, found)


def only_there(recorded: str | None, elsewhere: str = "") -> str:
    """Return sh that ends here, after the script ``elsewhere``, on any machine but the recorded one."""
    return f'if [ "$(cat /etc/machine-id)" != {quote([recorded or "unknown"])} ]; then\n{elsewhere or ":"}\nexit 0\nfi\n'
