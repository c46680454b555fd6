"""A paused worker: the record that keeps it stopped, and the message of the day that other users of the host read.

The record decides: while it is there, the worker's unit does not start, and no run starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from lodger.errors import Refused, UsageError
from lodger.host import paths
from lodger.host.command import Command, quote
from lodger.host.facts.base import Fact
from lodger.host.facts.deployed import Deployed, decode_files, files_snippet

_FORM = "%Y-%m-%d %H:%M"
_MADE = f"{paths.VAR}/made-motd.d"  # says that Lodger made the folder for messages of the day

# To the minute, by the host's clock, which its other users see.
NOW = Fact("calendar", "date '+%Y-%m-%d %H:%M'", lambda text: f"{datetime.strptime(text.strip(), _FORM):{_FORM}}")


@dataclass(frozen=True)
class Pause:
    """One pause, by its record.

    ``who`` paused ``worker`` and its ``gpus`` from ``since`` until ``until`` ("": until somebody resumes it), both
    ``YYYY-MM-DD HH:MM`` by the host's clock. ``waits_for`` names who was still on the GPUs when the pause was over.
    """

    worker: str
    gpus: tuple[int, ...] = ()
    who: str = "somebody"
    since: str = ""
    until: str = ""
    waits_for: str = ""

    @staticmethod
    def load(worker: str, text: str) -> Pause:
        """Return the pause in a record. An unreadable record is a pause too: the unit only checks that the file exists."""
        try:
            data = json.loads(text)
            texts = {name: str(data[name]) for name in ("who", "since", "until", "waits_for")}
            return Pause(worker, tuple(int(gpu) for gpu in data["gpus"]), **texts)
        except (ValueError, KeyError, TypeError):
            return Pause(worker)

    @property
    def text(self) -> str:
        """The record's content: one line of JSON."""
        return json.dumps(self.__dict__, ensure_ascii=True, sort_keys=True) + "\n"

    @property
    def motd(self) -> str:
        """The text of the message of the day."""
        numbers = " ".join(map(str, self.gpus))
        gpus, are, were = (f"GPU {numbers}", "is", "was") if len(self.gpus) == 1 else (f"GPUs {numbers}", "are", "were")
        if self.waits_for:
            return f"{gpus} {were} free until {self.until}: Lodger's worker {self.worker} waits for {self.waits_for}.\n"
        end = f" until {self.until}" if self.until else ""
        back = f"It comes back at {self.until[11:]}" if self.until else f"It comes back when {self.who} resumes it"
        return (
            f"{gpus} {are} free{end}: Lodger's worker {self.worker} is paused by {self.who}.\n"
            f"{back}, once {gpus} {are} free again: end your processes by then, and tell {self.who} if you finish earlier.\n"
        )

    def __str__(self) -> str:
        """Return one phrase for a report."""
        waits = f", and waits for {self.waits_for}" if self.waits_for else ""
        return f"worker {self.worker} is paused by {self.who} {f'until {self.until}' if self.until else 'with no end'}{waits}"


@dataclass(frozen=True)
class Places:
    """The paths of a pause of the container ``name`` on the host; every name begins with ``lodger-``."""

    name: str

    @property
    def record(self) -> str:
        """Its record."""
        return f"{paths.PAUSED}/{self.name}"

    @property
    def motd(self) -> str:
        """Its lines in the message of the day."""
        return f"{paths.MOTD}/{self.name}"

    @property
    def script(self) -> str:
        """The script that resumes the worker."""
        return f"{paths.RETURNS}/{self.name}"

    @property
    def timer(self) -> str:
        """The timer that runs it."""
        return f"{resume_unit(self.name)}.timer"

    @property
    def service(self) -> str:
        """The unit that runs it."""
        return f"{resume_unit(self.name)}.service"

    @property
    def way_back(self) -> tuple[str, ...]:
        """The files that only a pause with an end has."""
        return (self.script, f"{paths.UNITS}/{self.service}", f"{paths.UNITS}/{self.timer}")


def resume_unit(name: str) -> str:
    """Return the name, without its ending, of the units that resume the container ``name``."""
    return f"lodger-resume-{name.removeprefix('lodger-')}"


def _read(files: Mapping[str, str]) -> dict[str, Pause]:
    prefix = f"{paths.PAUSED}/lodger-"
    found = {path.removeprefix(prefix): text for path, text in files.items() if path.startswith(prefix)}
    return {name: Pause.load(name.removeprefix("worker-"), text) for name, text in sorted(found.items()) if "." not in name}


def paused(deployed: Deployed) -> dict[str, Pause]:
    """Return service -> its pause, for each that is paused on the host."""
    return _read({path: file.content for path, file in deployed.files.items()})


RECORDS: Fact[dict[str, Pause]] = Fact(
    "pauses",
    files_snippet(paths.PAUSED),
    lambda text: _read({path: file.content for path, file in decode_files(text).items()}),
)


def check(until: str) -> None:
    """Raise UsageError unless ``until`` is ``HH:MM`` or ``YYYY-MM-DD HH:MM``."""
    _moment(until, "2000-01-01")


def _moment(until: str, today: str) -> datetime:
    text = until if " " in until else f"{today} {until}"
    try:
        # strptime alone accepts a month of one digit, which sorts wrongly.
        return datetime.strptime(text if re.fullmatch(r"\d{4}-\d\d-\d\d \d?\d:\d\d", text) else "", _FORM)
    except ValueError:
        hint = 'HH:MM for today, or "YYYY-MM-DD HH:MM", by the clock of the host'
        raise UsageError(f"`--until {until}` is not a time", hint=hint) from None


def resolve(until: str, now: str) -> str:
    """Return ``until`` in full, for a host whose clock says ``now``; raise Refused for a time that is over there."""
    end = f"{_moment(until, now[:10]):{_FORM}}"
    if end <= now:
        raise Refused(
            f"{until} is already over",
            cause=f"it is {now} on the host",
            hint=f'for another day, write the day too: --until "YYYY-MM-DD {end[11:]}"',
        )
    return end


def tell(places: Places, pause: Pause) -> list[Command]:
    """Return the commands that write the record and the message of the day."""
    made = f"[ -d {paths.MOTD} ] || {{ mkdir -p {paths.VAR} {paths.MOTD} && touch {_MADE}; }}"
    return [
        paths.write(places.record, pause.text, why="record the pause"),
        Command(made, why="make a folder for messages of the day"),
        paths.write(places.motd, pause.motd, why="announce the pause in the message of the day"),
    ]


def set_up(places: Places, files: Mapping[str, str]) -> list[Command]:
    """Return the commands that write the resume script and its units, and start its timer again."""
    names = quote([places.timer]), quote([places.service])
    script = (
        f"systemctl daemon-reload && systemctl stop {names[1]} && systemctl enable {names[0]} && systemctl restart {names[0]}"
    )
    return [
        *(paths.write(path, text, why="write what resumes the worker") for path, text in files.items()),
        Command(script, why="start the timer"),
    ]


def forgotten(places: Places, *, from_inside: bool = False) -> str:
    """Return sh that removes a pause completely; ``from_inside`` leaves the unit that runs it running."""
    stop = "" if from_inside else f"systemctl stop {quote([places.service])} 2>/dev/null\n"
    files = quote([places.record, places.motd, *places.way_back])
    return (
        f"systemctl disable --now {quote([places.timer])} 2>/dev/null\n{stop}"
        f"rm -f {files} && systemctl daemon-reload || exit 1\n"
        f"rmdir --ignore-fail-on-non-empty {paths.PAUSED} {paths.RETURNS} 2>/dev/null\n"
        f"[ ! -e {_MADE} ] || ls {paths.MOTD}/lodger-* >/dev/null 2>&1 ||\n"
        f"    {{ rmdir {paths.MOTD} 2>/dev/null; rm -f {_MADE}; }}\n"
    )


def forget(places: Places) -> Command:
    """Return the command that removes record, message and timer, whichever of them exist."""
    return Command(forgotten(places), why="remove the pause: its record, message of the day and timer")


def put_back(places: Places, was: Deployed) -> list[Command]:
    """Return the commands that put the pause back as in ``was``; none when there was no pause."""
    pause = paused(was).get(places.name.removeprefix("lodger-"))
    if pause is None:
        return []
    files = {path: was.files[path].content for path in places.way_back if path in was.files}
    return [*tell(places, pause), *(set_up(places, files) if files else [])]


def renewed(pause: Pause) -> Pause:
    """Return the pause as it was announced, without ``waits_for``."""
    return replace(pause, waits_for="")
