"""What can be read of a host; facts that only one task asks for stand in modules of their own (health, packages, keys)."""

from lodger.host.facts.base import Fact, Facts, Unreadable, command, parse, script
from lodger.host.facts.deployed import DEPLOYED, LEDGER, MANIFEST, Deployed, HostFile, decode_files, files_snippet
from lodger.host.facts.docker import CONTAINERS, DOCKER, Container, Docker, images_fact
from lodger.host.facts.footprint import FOOTPRINT
from lodger.host.facts.gpu import DRIVER, Driver, Gpu
from lodger.host.facts.machine import (
    BUSY,
    CURL,
    MACHINE,
    MOUNTS,
    PORTS,
    PROCESSES,
    PROGRAMS,
    SYSTEM,
    UNITS,
    Disk,
    ListeningPort,
    Machine,
    Process,
    Program,
    Unit,
    disk_fact,
    unit_fact,
)
from lodger.host.facts.serving import Serving, serving_fact
from lodger.host.facts.weights import Folder, folder_fact

__all__ = [
    "BUSY", "CONTAINERS", "CURL", "DEPLOYED", "DOCKER", "DRIVER", "FOOTPRINT", "LEDGER", "MACHINE", "MANIFEST", "MOUNTS",
    "PORTS", "PROCESSES", "PROGRAMS", "SYSTEM", "UNITS", "Container", "Deployed", "Disk", "Docker", "Driver", "Fact", "Facts",
    "Folder", "Gpu", "HostFile", "ListeningPort", "Machine", "Process", "Program", "Serving", "Unit", "Unreadable", "command",
    "decode_files", "disk_fact", "files_snippet", "folder_fact", "images_fact", "parse", "script", "serving_fact", "unit_fact",
]  # fmt: skip
