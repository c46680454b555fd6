"""A command is a value: what runs on a host, as whom, with what input, for how long, and what counts as well.

Quoting happens here, once. Nothing in this module talks to a host; ``Transport`` is what does.
"""

from __future__ import annotations

import base64
import dataclasses
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from lodger.errors import CommandFailed


class Secret:
    """A string that shows itself only when asked: ``reveal()``.

    It redacts itself in ``str``, ``repr`` and formatting, and refuses to be pickled, so that it can not slip into a
    log, a journal, a diff or a traceback. On a host it travels by stdin into files of mode 0600, never in an argument.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself; the caller answers for where it goes."""
        return self._value

    def __str__(self) -> str:
        return "<secret>"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")


def quote(argv: Sequence[str]) -> str:
    """Return ``argv`` as one POSIX shell line in which every word stands for itself."""
    return shlex.join(argv)


@dataclass(frozen=True)
class Command:
    """One thing to run on a host.

    ``script`` is POSIX sh (made of ``argv`` by :func:`run`), ``why`` a short reason for journal and dry run, ``timeout``
    seconds after which the transport gives up, ``ok`` the exit codes that count as well. ``stdin`` is shown nowhere: a
    journal records its length only. ``output_limit`` bounds the bytes kept of each stream.
    """

    script: str
    why: str = ""
    sudo: bool = True
    stdin: bytes | Secret | None = field(default=None, repr=False)
    timeout: float = 60.0
    ok: tuple[int, ...] = (0,)
    output_limit: int = 4 * 1024 * 1024

    def input_bytes(self) -> bytes | None:
        """Return what is sent to standard input, None when it is closed at once."""
        if isinstance(self.stdin, Secret):
            return self.stdin.reveal().encode()
        return self.stdin

    def __str__(self) -> str:
        """Return the command as one would type it, for dry runs, journals and errors."""
        prefix = "sudo " if self.sudo else ""
        body = self.script if not _needs_shell(self.script) else "sh -c " + shlex.quote(self.script)
        redirect = f" <<{len(self.input_bytes() or b'')} bytes of input>>" if self.stdin is not None else ""
        return f"{prefix}{body}{redirect}"

    def by_hand(self) -> str:
        """Return what a person can paste into a shell, input included; a secret is left to be typed."""
        bare = str(dataclasses.replace(self, stdin=None))
        if not self.stdin or isinstance(self.stdin, Secret):
            return bare
        text = self.stdin.decode(errors="replace")
        typed = text.encode() == self.stdin and "\0" not in text
        fed = f"printf %s {shlex.quote(text)}" if typed else f"printf %s {base64.b64encode(self.stdin).decode()} | base64 -d"
        return f"{fed} | {bare}"


def _needs_shell(script: str) -> bool:
    return any(mark in script for mark in ("\n", ";", "|", "&", ">", "<", "$", "`"))


def run(
    *argv: str,
    why: str = "",
    sudo: bool = True,
    stdin: bytes | Secret | None = None,
    timeout: float = 60.0,
    ok: tuple[int, ...] = (0,),
) -> Command:
    """Return the command that runs ``argv`` as it stands, with no shell's eye on any word."""
    return Command(quote(argv), why=why, sudo=sudo, stdin=stdin, timeout=timeout, ok=ok)


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, both streams as text (undecodable bytes replaced), and how long it took (s)."""

    command: Command
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the exit code is one that the command's author called well."""
        return self.code in self.command.ok

    def check(self, host: str = "") -> Result:
        """Return self, or raise CommandFailed that quotes the last line the command printed."""
        if self.ok:
            return self
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        raise CommandFailed(
            f"`{self.command.why or self.command}` ended with exit code {self.code}",
            cause=lines[-1] if lines else "it printed nothing",
            host=host,
        )


class Transport(Protocol):
    """The way to one host. Implemented over SSH by ``transport.Ssh``; all else only knows this."""

    host: str

    def run(self, command: Command) -> Result:
        """Run ``command``; raise ConnectionLost if its end was not seen, CommandFailed past its deadline."""
        ...

    def forward(self, address: str, port: int) -> AbstractContextManager[int]:
        """Open a local port that leads to ``address:port`` as seen from the host; yield the local port."""
        ...
