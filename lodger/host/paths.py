"""Where Lodger's files stand on a host, and how one is written so that it is there whole or not at all."""

from __future__ import annotations

from lodger.host.command import Command, quote

PREFIX = "lodger-"
"""What the names of our units and containers begin with. A container's name is anybody's to choose: its label counts."""
STEP = f"{PREFIX}step-"
"""What the names of units begin with that are one command of a run."""
ROOT = "/opt/lodger"
RELEASES = f"{ROOT}/releases"
SERVICES = f"{ROOT}/services"
CURRENT = f"{ROOT}/current"
HISTORY = f"{ROOT}/history"
UNITS = "/etc/systemd/system"
VAR = "/var/lib/lodger"
LEDGER = f"{VAR}/unfinished.json"
LOCK = f"{VAR}/lock"
IMAGES = f"{VAR}/images"
ETC = "/etc/lodger"
KEYS = f"{ETC}/keys"
REMOVE_NO_KEYS = f"rmdir --ignore-fail-on-non-empty {KEYS} {ETC} 2>/dev/null; true"
PAUSED = f"{VAR}/paused"
RETURNS = f"{VAR}/returns"
REPLACED = f"{VAR}/replaced"
JOURNAL = f"{VAR}/journal"
DRIVER_CACHE = f"{VAR}/driver"
FETCH = f"{VAR}/fetch"
SHARE = f"{VAR}/share"
MOTD = "/etc/motd.d"


def pool_lock(pool: str) -> str:
    """Return the lock of a pool, on the host of its router: whoever restarts something of the pool holds it."""
    return f"{LOCK}-{pool}"


def key(pool: str, mark: str = "") -> str:
    """Return the file with the header that a pool asks for: of the key with this ``mark``, or the link to the one in use."""
    return f"{KEYS}/{pool}{f'.{mark}' if mark else ''}"


def write(path: str, content: str, why: str, mode: str = "0644") -> Command:
    """Return the command that puts ``content`` at ``path``: written beside it, renamed, and both flushed."""
    new, folder = quote([f"{path}.new"]), quote([path.rpartition("/")[0]])
    script = (
        f"mkdir -p {folder} && cat > {new} && chmod {mode} {new} && sync {new} && mv -f {new} {quote([path])} && sync {folder}"
    )
    return Command(script, why=why, stdin=content.encode())
