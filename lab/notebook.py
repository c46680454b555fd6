"""What other people run on a twin: a program that holds GPU memory and answers at a port, as it is or in an image."""

import json
from typing import Any

from lab.run import CHECKOUT

NOTEBOOK = "colleague/notebook:2024.1"
SERVICE = (CHECKOUT / "lab" / "gpu" / "gpu_service.py").read_text()


def gpu_compose(image: str, command: list[str], ports: list[str]) -> str:
    """Return a compose file with one service `app` that gets all GPUs."""
    gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    service: dict[str, Any] = {"image": image, "restart": "unless-stopped", "command": command, "ports": ports}
    service["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
    return json.dumps({"services": {"app": service}}, indent=1) + "\n"
