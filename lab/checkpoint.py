"""A twin's disks as they were at one moment, to begin from again: sooner done than to make it anew and deploy onto it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.run import run
from lab.twin import Twin


@dataclass(frozen=True)
class Checkpoint:
    """What was kept of a twin, which must not be made anew as long as this is used."""

    twin: Twin
    folder: Path

    @staticmethod
    def take(twin: Twin, folder: Path) -> Checkpoint:
        """Switch ``twin`` off in good order, keep its disks in ``folder`` (which is replaced), and leave it off."""
        run(["docker", "stop", "-t", "60", twin.container])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, disk in _disks(twin).items():
            run(["cp", "-aT", disk, folder / name])
        return Checkpoint(twin, folder)

    def restore(self) -> None:
        """Have the twin boot from what was kept; everything that it wrote since is lost, as after a power cut."""
        run(["docker", "kill", self.twin.container], check=False)  # it may be off
        for name, disk in _disks(self.twin).items():
            for entry in disk.iterdir():
                run(["rm", "-rf", entry])
            run(["cp", "-aT", self.folder / name, disk])
        self.twin.start()


def _disks(twin: Twin) -> dict[str, Path]:
    """Return the folders that hold what a twin wrote: the layer above its image, and its Docker's own."""
    (found,) = json.loads(run(["docker", "inspect", twin.container]).stdout)
    mounts: list[dict[str, Any]] = found["Mounts"]
    (docker,) = (mount["Source"] for mount in mounts if mount["Destination"] == "/var/lib/docker")
    return {"layer": Path(found["GraphDriver"]["Data"]["UpperDir"]), "docker": Path(docker)}
