"""Each parser on text that a host really gave, and readings that survive whatever a host prints in between.

data/facts holds the output of the fact script on twins: node1 and node2 with nothing of ours, and node1 deployed. Units
and mounts are cut to a few; the kernel's name and paths outside a host are replaced.
"""

import pytest

from lodger.host import facts
from lodger.host.facts.base import Facts, Unreadable
from tests.unit.readings import captured


def test_driver() -> None:
    found = captured("node2")[facts.DRIVER]
    assert (found.loaded, found.reported, found.complaint) == ("580.126.09", "580.126.09", "")
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert {(gpu.name, gpu.memory) for gpu in found.gpus} == {("NVIDIA GeForce RTX 3090", 24576)}


@pytest.mark.parametrize(
    ("text", "loaded", "complaint"),
    [
        ("loaded=\nsh: 1: nvidia-smi: not found\ncode=127\n", "", "sh: 1: nvidia-smi: not found"),
        (
            "loaded=NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  545.23.08  Release Build  (root@x)  \n"
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\ncode=18\n",
            "545.23.08",
            "Failed to initialize NVML: Driver/library version mismatch NVML library version: 580.126",
        ),
        ("loaded=\ncode=9\n", "", "nvidia-smi failed"),
        ("loaded=\n", "", "nvidia-smi failed"),
    ],
)
def test_driver_that_does_not_work(text: str, loaded: str, complaint: str) -> None:
    assert Facts({"driver": (0, text)})[facts.DRIVER] == facts.Driver(loaded, "", complaint, ())


def test_gpu_that_nvidia_smi_cannot_ask_is_not_understood() -> None:
    text = "loaded=\n0, NVIDIA GeForce RTX 3090, [Unknown Error], [Unknown Error], 580.126.09\ncode=0\n"
    with pytest.raises(Unreadable, match="driver was read, but its form is not known"):
        Facts({"driver": (0, text)})[facts.DRIVER]
