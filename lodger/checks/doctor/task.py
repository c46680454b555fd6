"""Examine one host: read it in one round trip, judge it, and run a GPU container with --probe."""

from __future__ import annotations

import re
import time

from lodger.checks import doctor
from lodger.checks.doctor.report import DoctorResult
from lodger.errors import LodgerError
from lodger.host import facts
from lodger.host.identity import refuse_other_machine
from lodger.host.ssh import Ssh
from lodger.inventory import Fleet, Host
from lodger.run.hosts import stop


def examine(fleet: Fleet, host: Host, *, probe: bool) -> DoctorResult:
    """Return what is wrong with ``host``; it is only read, in one round trip, and a second one for a ``probe``."""
    start = time.monotonic()
    try:
        with Ssh(host, cancelled=stop.is_set) as connection:
            left, arrived = time.time(), 0.0

            def hear(line: str) -> None:
                nonlocal arrived
                arrived = arrived or (time.time() if re.fullmatch(r"\d+\.\d+", line) else 0.0)  # the clock, read first

            read = facts.parse(connection.run(doctor.read_command(fleet, host), hear).check().stdout, host.name)
            refuse_other_machine(host.machine_id, read[facts.MACHINE])
            ran, command = None, doctor.probing(fleet, host)
            if probe:
                ran = doctor.probed(fleet, host, connection.run(command).stdout) if command else doctor.GpuContainerCheck()
            reading = doctor.HostReading(fleet, host, read, (left, arrived or time.time()), ran)
            seconds, trips = time.monotonic() - start, connection.round_trips
            return DoctorResult(host.name, doctor.judge(reading), None, doctor.private(fleet, host, read), trips, seconds)
    except LodgerError as error:
        error.host = error.host or host.name
        return DoctorResult(host.name, error=error, seconds=time.monotonic() - start)
