"""One run at a time on a host: a file taken atomically, with an owner and an expiry that is renewed while the run lives."""

from __future__ import annotations

import enum
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from lodger.host import paths
from lodger.host.command import Command, quote
from lodger.host.facts.base import Fact

TTL = 180  # seconds after the last renewal at which a lock may be broken
RENEWAL = 30  # seconds between renewals


@dataclass(frozen=True)
class LockOwner:
    """Who holds the lock: user, run, process (pid and its start time in clock ticks since boot), machine (machine-id)."""

    user: str
    run: str
    pid: int
    started: int
    machine: str

    def text(self) -> str:
        """Return the lock file's content."""
        return json.dumps(asdict(self), sort_keys=True)

    def __str__(self) -> str:
        return f"{self.user} (pid {self.pid}), run {self.run}"


def me(user: str, run: str) -> LockOwner:
    """Return this process as an owner."""
    pid = os.getpid()
    return LockOwner(user, run, pid, process_start(pid), this_machine())


def this_machine() -> str:
    """Return an id of the machine this runs on: its machine-id, or its name where there is none."""
    path = Path("/etc/machine-id")
    return path.read_text().strip() if path.exists() else os.uname().nodename


def process_start(pid: int) -> int:
    """Return when a process of this machine started (clock ticks since boot): 0 for no such process, -1 for unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return 0
        except PermissionError:
            return -1
        return -1  # alive, on a system without /proc: its start time is unknown
    return int(stat.rpartition(")")[2].split()[19])


@dataclass(frozen=True)
class Attempt:
    """The result of taking the lock: taken, or held by ``owner`` (None: unreadable), renewed ``age`` s ago."""

    taken: bool
    failure: str = ""
    owner: LockOwner | None = None
    age: float = 0.0
    text: str = ""


def owner_in(content: str) -> LockOwner | None:
    """Return the owner that a lock file names, None for a file that cannot be read."""
    try:
        return LockOwner(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _attempt(text: str) -> Attempt:
    word, _, rest = text.partition("\n")
    if word == "taken":
        return Attempt(taken=True)
    if word == "held":
        age, _, content = rest.partition("\n")
        return Attempt(taken=False, owner=owner_in(content), age=float(age), text=content.strip())
    return Attempt(taken=False, failure=text.removeprefix("failed").strip() or "it could not be written")


# flock on the folder itself: between looking at the lock and changing it no other run can act.
_ALONE = f"exec 9< {paths.VAR} && flock -w 10 9"


def _put(owner: LockOwner, lock: str) -> str:
    """Return sh that writes the lock to a new file and renames it: a full disk leaves no lock, not an empty one."""
    new = f"{lock}.new"
    return f"{{ {{ printf '%s\\n' {quote([owner.text()])} > {new} && mv -f {new} {lock}; }} || {{ rm -f {new}; false; }}; }}"


def _tell(lock: str) -> str:
    return f"printf 'held\\n%s\\n' $(( $(date +%s) - $(stat -c %Y {lock}) )); cat {lock}"


def attempt(owner: LockOwner, lock: str = paths.LOCK) -> Fact[Attempt]:
    """Return the only "fact" that acts: it takes a free lock, in the same round trip that reads the other facts."""
    snippet = f"""said=$( exec 2>&1; mkdir -p {paths.VAR} && {_ALONE} && [ ! -e {lock} ] && {_put(owner, lock)} )
if [ "$(cat {lock} 2>/dev/null)" = {quote([owner.text()])} ]; then
    echo taken
elif [ -e {lock} ]; then
    {_tell(lock)}
else
    echo "failed $said"
fi"""
    return Fact("lock", snippet, _attempt, first=True)


def seen(lock: str) -> Fact[Attempt | None]:
    """Return the fact of who holds the lock, None for nobody; nothing is taken."""
    snippet = f"[ ! -e {lock} ] || {{ {_tell(lock)}; }}"
    return Fact("lock seen", snippet, lambda text: _attempt(text) if text.strip() else None)


class Verdict(enum.Enum):
    """Whether a lock that another run holds may be taken over."""

    LIVE = "live"
    EXPIRED = "expired"
    ORPHAN = "orphan"


def judge(held: Attempt, mine: LockOwner, start_of: int) -> Verdict:
    """Judge a held lock. ``start_of`` is the start time of the owner's pid on this machine (0: no such process).

    An orphan belongs to this user on this machine, and its process has ended: it is taken over at once. Any other lock is live
    until it expires, even if its process has ended.
    """
    owner = held.owner
    if owner is not None and (owner.user, owner.machine) == (mine.user, mine.machine):
        gone = start_of == 0 or (start_of > 0 and start_of != owner.started)
        if gone:
            return Verdict.ORPHAN
    return Verdict.EXPIRED if held.age > TTL else Verdict.LIVE


def take_over(held: Attempt, mine: LockOwner, lock: str = paths.LOCK) -> Command:
    """Return the command that replaces exactly the lock that was seen; it fails when another run was faster."""
    seen = f'[ -e {lock} ] && [ "$(cat {lock})" = {quote([held.text])} ]'
    return Command(f"{_ALONE} && {seen} && {_put(mine, lock)}", why="take the lock over", ok=(0, 1, 2))


def renew(mine: LockOwner, lock: str = paths.LOCK) -> Command:
    """Return the command that renews our lock; exit code 1 means that it is no longer ours, and the output is its content."""
    ours = f'[ "$now" = {quote([mine.text()])} ] && touch {lock}'
    script = f"now=$(cat {lock} 2>/dev/null); {ours} || {{ printf '%s\\n' \"$now\"; false; }}"
    return Command(script, why="renew the lock", ok=(0, 1))


def release_script(mine: LockOwner, lock: str = paths.LOCK) -> str:
    """Return sh that removes the lock if it is ours, and an empty folder with it."""
    return (
        f'( {_ALONE} && if [ "$(cat {lock} 2>/dev/null)" = {quote([mine.text()])} ]; then rm -f {lock}; fi )\n'
        f"rmdir --ignore-fail-on-non-empty {paths.VAR} 2>/dev/null || true"
    )
