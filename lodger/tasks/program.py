"""The command line: our own Invoke program over the tasks of the checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from invoke.exceptions import Exit, ParseError
from invoke.program import Program

from lodger import checkout

VERSION = "0.1.0"


class LodgerProgram(Program):
    """Invoke, but bad usage ends with exit code 2, which plain Invoke answers with 1."""

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse Invoke's own options."""
        with _usage():
            super().parse_core(argv)
        if self.args.dry.value:
            raise Exit(
                "--dry is an option of Invoke and does not work here\n  hint: ./ops TASK --dry-run shows what would be done",
                code=2,
            )

    def parse_tasks(self) -> None:
        """Parse tasks and their options."""
        with _usage():
            super().parse_tasks()

    def execute(self) -> None:
        """Run the tasks; an unknown name is bad usage too."""
        with _usage():
            super().execute()


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(f"{error}\n  hint: `./ops --list` shows the tasks, `./ops --help TASK` their options", code=2) from error


def main() -> None:
    """Run the program over ``tasks.py`` of the checkout."""
    sys.path.insert(0, str(checkout.CODE))
    import tasks  # noqa: PLC0415  the collection lies beside the package, at the checkout's root

    try:
        try:
            LodgerProgram(name="Lodger", binary="./ops", version=VERSION, namespace=tasks.ns).run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        # The reader has closed the pipe, as in `./ops --list | head`; the rest must not be written again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        ended = error.__context__
        sys.exit(ended.code if isinstance(ended, SystemExit) else 1)
