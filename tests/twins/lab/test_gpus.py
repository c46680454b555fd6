"""The simulated GPU: what nvidia-smi shows, who gets which card, and what is refused."""

from lab.lab import Lab
from lab.twin import Twin
from tests.twins.lab.registry import pull
from tests.twins.site import Fresh

TWINS = ("node2",)


def smi(twin: Twin, query: str) -> list[list[str]]:
    answer = twin.exec(["nvidia-smi", query, "--format=csv,noheader,nounits"]).stdout
    return [line.split(", ") for line in answer.splitlines()]


def test_nvidia_smi_shows_who_holds_how_much(fresh: Fresh) -> None:
    twin = fresh("node1")
    used = smi(twin, "--query-gpu=index,memory.used,memory.total,driver_version")
    assert [row[0] for row in used] == ["0", "1", "2", "3"]
    assert {(row[2], row[3]) for row in used} == {("24576", "580.126.09")}
    creator = twin.exec("supervisorctl pid aigc-creator").stdout.strip()
    apps = smi(twin, "--query-compute-apps=pid,used_memory")
    assert apps.count([creator, "1024"]) == 4
    twin.exec("supervisorctl stop aigc-creator")
    after = smi(twin, "--query-gpu=memory.used")
    assert [int(row[1]) - int(now[0]) for row, now in zip(used, after, strict=True)] == [1024] * 4


def test_nvidia_smi_says_when_driver_and_library_differ(node2: Twin) -> None:
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    node2.exec(f"ln -sfn libnvidia-ml.so.545.23.06 {library}")
    said = node2.exec("nvidia-smi", check=False)
    node2.exec(f"ln -sfn libnvidia-ml.so.580.126.09 {library}")
    assert said.returncode == 18
    assert "Failed to initialize NVML: Driver/library version mismatch" in said.stdout


def test_gpu_memory_cannot_be_promised_twice(node2: Twin) -> None:
    node2.exec("systemctl is-active vllm-qwen")
    asked = node2.exec("timeout 5 /opt/vllm-qwen/service.py --gpus 0 --memory-mib 20000", check=False)
    assert asked.returncode == 1
    assert "CUDA out of memory" in asked.stderr


def test_a_container_sees_the_gpus_it_was_given(lab: Lab, node1: Twin) -> None:
    image = pull(node1, lab, "v0.5.19-cu129")
    show = "ls /dev/ | grep nvidia; nvidia-smi --query-gpu=index --format=csv,noheader; mount | grep -c gpu-sim"
    asked = node1.exec(["docker", "run", "--rm", "--gpus", '"device=1,3"', "--entrypoint", "sh", image, "-c", show]).stdout
    assert asked.split() == ["nvidia-uvm", "nvidia1", "nvidia3", "nvidiactl", "1", "3", "1"]
    none = node1.exec(
        ["docker", "run", "--rm", "--entrypoint", "sh", image, "-c", "ls /dev | grep -c nvidia"], check=False
    ).stdout
    assert none.strip() == "0"


def test_the_hook_refuses_an_image_that_is_too_new_for_the_driver(lab: Lab, fresh: Fresh) -> None:
    twin = fresh("node1")
    image = pull(twin, lab, "v0.5.20")
    command = ["docker", "run", "--rm", "--gpus", "all", "--entrypoint", "true"]
    assert twin.exec([*command, image]).returncode == 0
    twin.install_driver("575.57.08")
    assert "CUDA Version: 12.9" in twin.exec("nvidia-smi").stdout
    refused = twin.exec([*command, image], check=False)
    assert refused.returncode != 0
    assert (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver to a newer "
        "version, or use an earlier cuda container: unknown" in refused.stderr
    )
    assert twin.exec([*command, "-e", "NVIDIA_DISABLE_REQUIRE=1", image]).returncode == 0
    assert twin.exec([*command, pull(twin, lab, "v0.5.19-cu129")]).returncode == 0
