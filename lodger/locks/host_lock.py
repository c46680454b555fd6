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
    """Return when a process of this machine started (clock ticks since boot), 0 when there is none to be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return 0
        except PermissionError:
            return -1
        return -1  # alive, on a system without /proc: its start time is not known
    return int(stat.rpartition(")")[2].split()[19])


@dataclass(frozen=True)
class Attempt:
    """What came of taking the lock: taken, or held by ``owner`` (None: unreadable) whose last renewal is ``age`` s ago."""

    taken: bool
    failure: str = ""
    owner: LockOwner | None = None
    age: float = 0.0
    text: str = ""


def owner_in(content: str) -> LockOwner | None:
    """Return whom a lock file names, None for one that nobody can read."""
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


# Holding the folder itself (flock) makes looking at the lock and changing it one step for everybody.
_ALONE = f"exec 9< {paths.VAR} && flock -w 10 9"


def _put(owner: LockOwner, lock: str) -> str:
    """Return sh that writes the lock beside and puts it in place whole: a full disk leaves none, not an empty one."""
    new = f"{lock}.new"
    return f"{{ {{ printf '%s\\n' {quote([owner.text()])} > {new} && mv -f {new} {lock}; }} || {{ rm -f {new}; false; }}; }}"


def _tell(lock: str) -> str:
    return f"printf 'held\\n%s\\n' $(( $(date +%s) - $(stat -c %Y {lock}) )); cat {lock}"


def attempt(owner: LockOwner, lock: str = paths.LOCK) -> Fact[Attempt]:
    """Return the one "fact" that acts: it takes the lock if nobody has it, in the same round trip that reads the rest."""
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
    """Return the fact who has the lock, None for nobody; nothing is taken."""
    snippet = f"[ ! -e {lock} ] || {{ {_tell(lock)}; }}"
    return Fact("lock seen", snippet, lambda text: _attempt(text) if text.strip() else None)


class Verdict(enum.Enum):
    """What may be done about a lock that somebody holds."""

    LIVE = "live"
    EXPIRED = "expired"
    ORPHAN = "orphan"


def judge(held: Attempt, mine: LockOwner, start_of: int) -> Verdict:
    """Return what a held lock is. ``start_of`` is the start time of the owner's pid on this machine (0: no such process).

    An orphan is this user's, on this machine, and its process is gone: it is taken over at once. Anything else is live
    until its expiry, whatever its process.
    """
    owner = held.owner
    if owner is not None and (owner.user, owner.machine) == (mine.user, mine.machine):
        gone = start_of == 0 or (start_of > 0 and start_of != owner.started)
        if gone:
            return Verdict.ORPHAN
    return Verdict.EXPIRED if held.age > TTL else Verdict.LIVE


def take_over(held: Attempt, mine: LockOwner, lock: str = paths.LOCK) -> Command:
    """Return the command that replaces exactly the lock that was seen; it fails when somebody else was faster."""
    seen = f'[ -e {lock} ] && [ "$(cat {lock})" = {quote([held.text])} ]'
    return Command(f"{_ALONE} && {seen} && {_put(mine, lock)}", why="take the lock over", ok=(0, 1, 2))


def renew(mine: LockOwner, lock: str = paths.LOCK) -> Command:
    """Return the command that renews the lock while it is ours; exit code 1 says that it no longer is, its output whose."""
    ours = f'[ "$now" = {quote([mine.text()])} ] && touch {lock}'
    script = f"now=$(cat {lock} 2>/dev/null); {ours} || {{ printf '%s\\n' \"$now\"; false; }}"
    return Command(script, why="renew the lock", ok=(0, 1))


def release_script(mine: LockOwner, lock: str = paths.LOCK) -> str:
    """Return sh that gives the lock back if it is ours, and leaves no empty folder behind."""
    return (
        f'( {_ALONE} && if [ "$(cat {lock} 2>/dev/null)" = {quote([mine.text()])} ]; then rm -f {lock}; fi )\n'
        f"rmdir --ignore-fail-on-non-empty {paths.VAR} 2>/dev/null || true"
    )
