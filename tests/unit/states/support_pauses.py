"""What the tests of states share."""

from __future__ import annotations

from typing import Any

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import HostFile
from lodger.release import pauses
from lodger.release.pauses import Pause
from lodger.states.pool_place import PoolPlace
from lodger.states.service_base import pause_places
from lodger.states.worker_pause import AutoResume
from lodger.states.worker_unpaused import WorkerUnpaused
from tests.unit.readings import HOST, base, deployed, installed, readings, record, unit, worker

TODAY = "2026-11-29 13:57"
A = worker("a")
PLACES = pause_places(A)
CONDITION = "ConditionPathExists=!/var/lib/lodger/paused/lodger-worker-a"
WAY = AutoResume(HOST, PoolPlace(), ())


def stands(pause: Pause | None, *, way: AutoResume = WAY, condition: str = CONDITION) -> Facts:
    """Return a host on which worker a is deployed and, with ``pause``, given back."""
    files = installed("r1", A)
    text = f"# io.lodger.host={HOST}\n[Unit]\n{condition}\n"
    files |= {f"/etc/systemd/system/{A.unit}": HostFile(text, 0o644, "root")}
    timer = None
    if pause is not None:
        files |= record("paused/lodger-worker-a", pause.text)
        made = way.files(A, pauses.renewed(pause))
        files |= {path: HostFile(content, 0o644, "root") for path, content in made.items()}
        timer = unit(PLACES.timer) if made else None
    state = WorkerUnpaused(A)
    values: dict[facts.Fact[Any], Any] = {
        state._motd: pause.motd if pause else "",
        state._timer: timer,
        pauses.NOW: TODAY,
        **base(deployed=deployed(("r1",), links={"worker-a": "r1"}, files=files)),
    }
    return readings(values)


UNTIL = Pause("a", A.gpus, "wang", TODAY, "2026-11-29 18:00")
