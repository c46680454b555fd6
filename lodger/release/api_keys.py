"""API keys of pools: they are in files on the operator's machine, and never in the inventory, git or a release."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from lodger.errors import InventoryError
from lodger.host.command import Secret
from lodger.inventory import Fleet

# No character that a shell, JSON, Python's repr or HTTP escapes: the filter that hides keys in logs must find it.
_ACCEPTED = re.compile(r"[A-Za-z0-9._~+/=-]{20,200}")


@dataclass(frozen=True)
class ApiKey:
    """The key that a pool's workers and routers require.

    ``mark`` is eight hex digits that tell two keys apart, too few to confirm a guessed key. ``secret`` is None for the
    key of an earlier release, which only the host still has.
    """

    pool: str
    mark: str
    secret: Secret | None = None

    @property
    def header(self) -> Secret | None:
        """The request header with the key, as curl reads it from a file."""
        return Secret(f"Authorization: Bearer {self.secret.reveal()}\n") if self.secret is not None else None


def mark(key: str) -> str:
    """Return the mark of ``key``."""
    return hashlib.sha256(f"lodger {key}".encode()).hexdigest()[:8]


def of(fleet: Fleet, pool: str) -> ApiKey | None:
    """Return the key of a pool, None for one without a key.

    Raises InventoryError for a file that is missing, readable by others, or does not hold exactly one key.
    """
    named = fleet.pools[pool].api_key_file
    if named is None:
        return None
    path = fleet.folder / Path(named).expanduser()
    where = fleet.where("pools", pool, "api_key_file")
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        hint = f"install -m 600 /dev/null {path} && openssl rand -hex 32 > {path}"
        cause = getattr(error, "strerror", None) or "it is not a text file"
        raise InventoryError(f"{where}: the key of pool {pool} cannot be read from {path}", cause=cause, hint=hint) from error
    if mode & 0o077:
        raise InventoryError(f"{where}: others can read the key of pool {pool}", cause=f"{path}", hint=f"chmod 600 {path}")
    if not _ACCEPTED.fullmatch(text):
        accepts = "20 to 200 letters, digits and . _ ~ + / = -, and nothing else in the file"
        raise InventoryError(f"{where}: {path} does not hold a key; accepted: {accepts}", hint=f"openssl rand -hex 32 > {path}")
    return ApiKey(pool, mark(text), Secret(text))
