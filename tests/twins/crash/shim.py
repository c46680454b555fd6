"""The product, run with a blow at one of its commands: `python -m tests.twins.crash.shim KIND COMMAND PHASE DELAY MAILBOX -- TASK ...`.

KIND is kill (SIGKILL to the controller), drop (the connection is cut) or power (the harness cuts the twin's power and switches it
on again). The blow lands at one command that acts (reading facts, locks and turns do not count): COMMAND is its number, 0 for
the first, or words of its reason. It lands before it is sent, while it runs (DELAY seconds into it), or after it ended and before
anybody has written that down. With COMMAND -1 nothing happens. MAILBOX gets a line for each such command that ended.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lodger.host import ssh
from lodger.host.command import Command, Result
from lodger.tasks import program

READS = {
    "read the facts",
    "renew the lock",
    "unlock",
    "read as a witness",
    "take the lock of the pool",
    "release the lock of the pool",
}


class Blow:
    """Counts commands, and strikes once."""

    def __init__(self, kind: str, command: str, phase: str, delay: float, mailbox: Path) -> None:
        self.kind, self.command, self.phase, self.delay, self.mailbox = kind, command, phase, delay, mailbox
        self.count = 0
        self.by_words = not command.lstrip("-").isdigit()
        self.found = False

    def strike(self, connection: ssh.Ssh) -> None:
        """Do it."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        (self.mailbox / "struck").write_text(now)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "drop":
            connection.close()
            return
        (self.mailbox / "cut").touch()
        end = time.monotonic() + 120
        while not (self.mailbox / "on").exists() and time.monotonic() < end:
            time.sleep(0.1)
        connection.close()

    def around(self, run: Callable[..., Result]) -> Callable[..., Result]:
        """Wrap ``Ssh.run``."""

        def wrapped(connection: ssh.Ssh, command: Command, on_line: Callable[[str], None] | None = None) -> Result:
            if command.why in READS:
                return run(connection, command, on_line)
            number, self.count = str(self.count), self.count + 1
            mine = self.command == number or (not self.found and self.by_words and self.command in command.why)
            self.found |= mine
            if mine and self.phase == "before":
                self.strike(connection)
            if mine and self.phase == "during":
                threading.Timer(self.delay, self.strike, [connection]).start()
            result = run(connection, command, on_line)
            with (self.mailbox / "acted").open("a") as acted:
                acted.write(json.dumps({"why": command.why, "seconds": round(result.seconds, 3)}) + "\n")
            if mine and self.phase == "after":
                self.strike(connection)
            return result

        return wrapped


def main() -> None:
    """Run the task with the blow in place."""
    kind, command, phase, delay, mailbox, _, *words = sys.argv[1:]
    blow = Blow(kind, command, phase, float(delay), Path(mailbox))
    ssh.Ssh.run = blow.around(ssh.Ssh.run)  # type: ignore[method-assign]  # that is the point
    sys.argv = ["lodger", *words]
    program.main()


if __name__ == "__main__":
    main()
