"""The fleet as its owner wrote it down: ``hosts/fleet.yml`` and one ``hosts/<name>.yml`` for each machine."""

from lodger.inventory.load import load
from lodger.inventory.schema import (
    Draft,
    EngineSettings,
    Fleet,
    Gpus,
    Host,
    Image,
    Model,
    Neighbour,
    Pool,
    Router,
    Routing,
    Site,
    SshSettings,
    Vrrp,
    Weights,
    Worker,
)

__all__ = [
    "Draft", "EngineSettings", "Fleet", "Gpus", "Host", "Image", "Model", "Neighbour", "Pool", "Router", "Routing", "Site",
    "SshSettings", "Vrrp", "Weights", "Worker", "load",
]  # fmt: skip
