"""The facts that a footprint is made of (run/footprint.py says how)."""

from __future__ import annotations

from typing import Any

from lodger.host.facts.base import Fact
from lodger.host.facts.docker import CONTAINERS
from lodger.host.facts.machine import MOUNTS, PORTS, PROCESSES, PROGRAMS, UNITS

# Everything that a footprint is made of; footprint.py says how.
FOOTPRINT: tuple[Fact[Any], ...] = (CONTAINERS, UNITS, PROGRAMS, PORTS, PROCESSES, MOUNTS)
