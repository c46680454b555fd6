"""The driver that is loaded is the one whose programs are installed, and both are the declared one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from testinfra.host import Host

import lodger.inventory


@pytest.fixture(scope="module")
def gpus(host: Host) -> list[list[str]]:
    """Index, name, memory (MiB) and driver of each GPU, as the driver's own program tells them."""
    query = "nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits"
    return [line.split(", ") for line in host.check_output(query).splitlines()]


def test_loaded_module_is_the_declared_driver(host: Host, inventory_host: lodger.inventory.Host) -> None:
    loaded = re.search(r"Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", host.check_output("cat /proc/driver/nvidia/version"))
    assert loaded is not None, "/proc/driver/nvidia/version names no version"
    assert loaded[1] == inventory_host.driver


def test_userland_is_the_declared_driver(gpus: Any, inventory_host: lodger.inventory.Host) -> None:
    assert {driver for *_, driver in gpus} == {inventory_host.driver}


def test_gpus_are_the_declared_ones(gpus: Any, inventory_host: lodger.inventory.Host) -> None:
    declared = inventory_host.gpus
    assert [int(index) for index, *_ in gpus] == list(range(declared.count))
    assert {name for _, name, *_ in gpus} == {declared.model}
    assert {int(memory) for _, _, memory, _ in gpus} == {declared.memory_mib}
