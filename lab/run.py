"""What every part of the lab uses: its error, one way to run programs, one voice, and where things are kept."""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Shared by every checkout on the machine: images, stores, disks, and the lab's own dockerd. The rest lies in <checkout>/.lab.
MACHINE = Path(os.environ.get("LODGER_LAB_DIR", "/var/lib/lodger-lab"))
# Seconds for which the lab, or a test, waits for what is to come: what never comes is a failure, a busy machine is none.
PATIENCE = 600.0


class LabError(RuntimeError):
    """The lab cannot do what was asked: one sentence with the cause, and a hint of what to do."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


def say(text: str) -> None:
    """Print one line of progress on stderr; stdout belongs to the tasks."""
    sys.stderr.write(f"lab: {text}\n")
    sys.stderr.flush()


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    stdin: str | bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
    called: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its output as text. An error speaks of it as `called`.

    Raises LabError, with the last line the program wrote, when it fails (unless `check` is off) or outlives `timeout` seconds.
    """
    words = [str(word) for word in argv]
    called = called or words
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        raw = subprocess.run(
            words, input=data, capture_output=True, env={**os.environ, **(env or {})}, timeout=timeout, check=False
        )
    except FileNotFoundError as error:
        raise LabError(f"there is no program {words[0]} on this machine", "lab.up installs what the lab needs") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(called[:4])}` did not end within {timeout:.0f} s") from error
    out, err = (text.decode(errors="replace") for text in (raw.stdout, raw.stderr))
    if check and raw.returncode:
        last = (err.strip() or out.strip() or "no output").splitlines()[-1]
        raise LabError(f"`{' '.join(called[:6])}` ended with {raw.returncode}: {last}")
    return subprocess.CompletedProcess(words, raw.returncode, out, err)


def wait_until(true: Callable[[], bool], what: str, timeout: float = PATIENCE, pause: float = 0.05) -> None:
    """Ask again and again until `true()`; raise LabError saying that `what` did not happen when `timeout` seconds are over."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            raise LabError(f"{what}: not within {timeout:.0f} s")
        time.sleep(pause)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while the block runs; a dead holder's lock is gone with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def digest(*parts: str | Path) -> str:
    """Twelve hex digits that change when a text, a file or anything in a folder changes (names, contents and the x bit)."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            whole.update(part.encode() + b"\0")
            continue
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if "__pycache__" not in path.parts and (path.is_symlink() or path.is_file()):
                body = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
                whole.update(f"{path.relative_to(part)}\0{os.access(path, os.X_OK)}\0".encode() + body + b"\0")
    return whole.hexdigest()[:12]
