"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

from dataclasses import replace
from typing import Any

import pytest

from lodger.host.nvidia import cuda_of_driver, version_key
from lodger.states.host_fit import HostFit
from tests.unit.readings import driver
from tests.unit.states.support_states import DOCKER, FIT, fit, whats


def test_a_host_that_can_carry_it_is_satisfied() -> None:
    assert (FIT.missing(fit()), FIT.blockers(fit())) == ("", [])


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"docker": replace(DOCKER, client=False, server="", compose="", gpu_hook=False)}, "Docker is not installed"),
        ({"docker": replace(DOCKER, server="")}, "dockerd does not answer"),
        ({"docker": replace(DOCKER, compose="")}, "Docker Compose v2 is missing"),
        ({"docker": replace(DOCKER, compose="1.29.2")}, "Docker Compose v2 is missing"),
        ({"docker": replace(DOCKER, gpu_hook=False)}, "Docker cannot give GPUs to containers"),
        ({"curl": False}, "curl is missing"),
        ({"read_only": ("/opt/lodger",)}, "/opt/lodger cannot be written"),
        ({"free": {"/var/lib/lodger": 2**20}}, "the disk below /var/lib/lodger is full"),
        ({"driver": driver(complaint="NVML: mismatch")}, "nvidia-smi does not work"),
        ({"driver": driver(4, 4, 4, 4, loaded="545.23.08")}, "the driver is not the declared one"),
        ({"driver": driver(4, 4, 4)}, "the number of GPUs is not the declared one"),
        ({"driver": driver(4, 4, 4, 4, memory=12288)}, "the GPUs have less memory than declared"),
    ],
)
def test_what_a_host_lacks_is_one_final_blocker_with_a_hint(values: dict[str, Any], what: str) -> None:
    read = fit(**values)
    found = FIT.blockers(read)
    assert found[0].what == FIT.missing(read) == what
    assert all(blocker.hint and not blocker.awaits for blocker in found)


def test_everything_that_is_missing_is_named_at_once() -> None:
    read = fit(docker=replace(DOCKER, compose=""), curl=False, driver=driver(4, 4, 4), free={"/opt/lodger": 0})
    assert len(FIT.blockers(read)) == 4


def test_a_driver_too_old_for_the_images_cuda_is_named_whatever_the_inventory_declares() -> None:
    old = HostFit(driver="545.23.08", gpu_count=1, gpu_memory=24576, cuda="12.9")
    found = old.blockers(fit(driver=driver(4, loaded="545.23.08")))
    assert whats(found) == ["the image's CUDA is too new for the driver"]
    assert "runs CUDA up to 12.3" in found[0].cause
    assert HostFit(driver="545.23.08", gpu_count=1, gpu_memory=24576).blockers(fit(driver=driver(4, loaded="545.23.08"))) == []


def test_a_gpu_may_show_a_little_less_memory_than_its_label() -> None:
    assert FIT.missing(fit(driver=driver(4, 4, 4, 4, memory=24268))) == ""


@pytest.mark.parametrize(
    ("version", "cuda"),
    [
        ("580.126.09", "13.0"),
        ("579.99", "12.9"),
        ("575.51.03", "12.9"),
        ("545.23.08", "12.3"),
        ("525.1", "12.0"),
        ("470.1", ""),
    ],
)
def test_newest_cuda_of_a_driver(version: str, cuda: str) -> None:
    assert cuda_of_driver(version) == cuda


def test_versions_compare_as_numbers() -> None:
    assert version_key("2.9") < version_key("v2.26.1-4")
    assert version_key("") < version_key("1")
