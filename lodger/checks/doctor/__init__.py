"""What is wrong with a host, or soon will be: each check compares the host with the inventory, and says what to do."""

from lodger.checks.doctor.docker import PROBE_PATIENCE, probed, probing
from lodger.checks.doctor.examine import CHECKS, judge
from lodger.checks.doctor.reading import (
    GpuContainerCheck,
    HostReading,
    fit,
    images_of,
    pinned,
    questions,
    read_command,
    weights,
)
from lodger.checks.doctor.site_words import private

__all__ = [
    "CHECKS", "PROBE_PATIENCE", "GpuContainerCheck", "HostReading", "fit", "images_of", "judge", "pinned", "private", "probed",
    "probing", "questions", "read_command", "weights",
]  # fmt: skip
