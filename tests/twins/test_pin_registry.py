"""Pinning against a real registry: the one that the twins pull from, under the name that the inventory has for it."""

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from lab.image import REGISTRY
from lab.lab import Lab
from lodger import inventory
from lodger.inventory.pin import pin

TWINS = ()
HOSTS = Path(__file__).parents[2] / "hosts"


@pytest.fixture
def registry_by_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry's name lead to the lab's depot, as it does in a twin, and trust the lab's authority."""
    resolve = socket.getaddrinfo

    def resolve_registry(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve(lab.depot if host in (REGISTRY, REGISTRY.encode()) else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_registry)
    monkeypatch.setenv("SSL_CERT_FILE", str(lab.keys / "ca.crt"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("registry_by_name")
def test_pin_writes_the_digests_that_the_twins_pull_by(lab: Lab, tmp_path: Path) -> None:
    for file in HOSTS.glob("*.yml"):
        shutil.copy(file, tmp_path)
    overlay = {name: image.digest for name, image in inventory.load(lab.overlay).images.items()}
    assert {change.image: change.new for change in pin(tmp_path)} == overlay
    assert {name: image.digest for name, image in inventory.load(tmp_path).images.items()} == overlay
    assert not any(change.changed for change in pin(tmp_path))
