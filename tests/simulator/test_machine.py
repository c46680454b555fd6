"""What an engine finds on the machine: weights, a driver, cards, and others who use them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.engine.sglang import gpu

from .engine_lab import RTX3090, Lab, replace_option, running_lab, wait_for
from .failing import CLOCK, ended, survives_long

pytestmark = pytest.mark.usefixtures("clean")


def changed_model(lab: Lab, change: Callable[[Path], None]) -> str:
    """Return the seed's options with a changed copy of the target model."""
    lab.model("qwen3.8-27b-fp8")
    copy = lab.models / f"changed-{time.monotonic_ns()}"
    subprocess.run(["cp", "-r", str(lab.models / "qwen3.8-27b-fp8"), str(copy)], check=True)
    change(copy)
    return replace_option(lab.seed_options(), "--model-path", str(copy))


def test_a_gptq_model_with_narrow_projections_fails(lab: Lab) -> None:
    def quantize(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": 8, "group_size": 128}
        (folder / "config.json").write_text(json.dumps(config))

    ended(lab.start(changed_model(lab, quantize)), -9, "RuntimeError: size_n = 24 is not divisible by tile_n_size = 64")


def test_a_missing_shard_fails(lab: Lab) -> None:
    engine = lab.start(changed_model(lab, lambda folder: next(folder.glob("*2-of*")).unlink()))
    ended(engine, -9, "FileNotFoundError: No such file or directory", "Received sigquit")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "header too small"),
        (b"<html>not found</html>", "header too large"),
        (b"\x10\0\0\0\0\0\0\0{}", "invalid header length"),
    ],
)
def test_a_corrupt_shard_fails(lab: Lab, content: bytes, said: str) -> None:
    def corrupt(folder: Path) -> None:
        next(folder.glob("*2-of*")).write_bytes(content)

    engine = lab.start(changed_model(lab, corrupt))
    ended(engine, -9, f"SafetensorError: Error while deserializing header: {said}")


def test_a_shard_that_only_stands_for_its_size_is_accepted(lab: Lab) -> None:
    def sparse(folder: Path) -> None:
        with next(folder.glob("*2-of*")).open("wb") as file:
            file.truncate(4_000_000_000)

    lab.start(changed_model(lab, sparse)).ready()


def test_without_a_gpu_it_does_not_start(lab: Lab, tmp_path: Path) -> None:
    engine = lab.start(lab.seed_options(), env={"SIM_DEV_DIR": str(tmp_path)})
    ended(engine, 1, "no CUDA-capable device", "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS)")


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"), [("545.23.06", "13.0.3", False), ("545.23.06", "12.9.2", True), ("580.126.09", "13.0.3", True)]
)
def test_a_driver_too_old_for_the_images_cuda_is_error_803(tmp_path: Path, driver: str, cuda: str, runs: bool) -> None:
    with running_lab(tmp_path, driver=driver, clock=CLOCK) as old:
        engine = old.start(old.seed_options(), env={"CUDA_VERSION": cuda})
        if runs:
            engine.ready()
        else:
            ended(
                engine,
                1,
                "Error 803: system has unsupported display driver / cuda driver combination",
                "RuntimeError: No accelerator",
            )


def test_more_ranks_than_cards_fail(lab: Lab) -> None:
    engine = lab.start(lab.seed_options(), env={"CUDA_VISIBLE_DEVICES": "0,1"})
    ended(engine, -9, "CUDA error: invalid device ordinal")


def test_cards_with_unequal_free_memory_are_refused(lab: Lab) -> None:
    with lab.memory_user(6000):
        ended(lab.start(lab.seed_options()), -9, "RuntimeError: The memory capacity is unbalanced.")


def test_a_neighbours_memory_shrinks_the_pools(lab: Lab) -> None:
    alone = lab.start(lab.seed_options()).ready()
    tokens = alone.json("/server_info")["max_total_num_tokens"]
    alone.kill()
    with lab.memory_user(1024):
        beside = lab.start(lab.seed_options()).ready()
        assert beside.json("/server_info")["max_total_num_tokens"] < tokens - 20_000
        assert survives_long(beside)


def test_two_engines_do_not_fit_on_the_same_cards(lab: Lab) -> None:
    lab.start(lab.seed_options()).ready()
    second = lab.start(lab.seed_options())
    assert second.exit_code() == -9


def test_two_engines_share_a_machine_by_base_gpu(tmp_path: Path) -> None:
    with running_lab(tmp_path, count=8, clock=CLOCK) as eight:
        first = eight.start(eight.seed_options())
        second = eight.start(eight.seed_options() + " --base-gpu-id 4")
        assert first.ready().content("What is 1+1?") == second.ready().content("What is 1+1?") == "1+1 = 2."


def test_memory_cannot_be_overcommitted_and_the_kernel_frees_a_dead_processs(lab: Lab) -> None:
    device = gpu.open_device(0, lab.devices / "nvidia0")
    try:
        total = RTX3090[1]
        holder = lab.memory_user(10_000)
        assert device.free() == total - 10_000
        with pytest.raises(gpu.OutOfMemory, match="CUDA out of memory"):
            device.allocate(total - 9_999)
        assert device.held() == 0, "what could not be had in full is not held in part"
        taken = device.allocate(total - 10_000)
        assert device.free() == 0
        device.release(taken)
        holder.kill()
        holder.wait()
        wait_for(lambda: device.free() == total, "the dead process's memory is free")
    finally:
        os.close(device.descriptor)
