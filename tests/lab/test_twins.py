"""The lab itself: twins are what their host files say, mend, reset, keep apart, and the judge sees what happens to others."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import judge, system
from lab.image import REGISTRY
from lab.lab import Lab, forget_vanished
from lab.run import CHECKOUT, LabError, run, wait_until
from lab.twin import Twin

ENGINE = f"{REGISTRY}/lmsysorg/sglang"
Fresh = Callable[[str], Twin]


def values(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def smi(twin: Twin, query: str) -> list[list[str]]:
    answer = twin.exec(["nvidia-smi", query, "--format=csv,noheader,nounits"]).stdout
    return [line.split(", ") for line in answer.splitlines()]


def pull(twin: Twin, lab: Lab, tag: str) -> str:
    """Pull by digest, as the product does, and return the reference."""
    digest = next(value for name, value in digests(lab).items() if name.endswith(tag))
    twin.exec(["docker", "pull", "-q", f"{ENGINE}@{digest}"])
    return f"{ENGINE}@{digest}"


def digests(lab: Lab) -> dict[str, str]:
    """Ask the registry, from inside a twin, where it has its real name and a certificate that is trusted."""
    found = {}
    for tag in ("v0.5.19-cu129", "v0.5.20"):
        url = f"https://{REGISTRY}/v2/lmsysorg/sglang/manifests/{tag}"
        accept = "Accept: application/vnd.docker.distribution.manifest.v2+json"
        ca = f"/etc/docker/certs.d/{REGISTRY}/ca.crt"
        head = lab.twin("node2").exec(["curl", "-sfI", "--cacert", ca, "-H", accept, url]).stdout
        found[tag] = next(line.split()[1] for line in head.splitlines() if line.lower().startswith("docker-content-digest"))
    return found


# ---------------------------------------------------------------- what a twin is


def test_twins_run_what_their_host_files_name(fresh: Fresh) -> None:
    node1, node2 = fresh("node1"), fresh("node2")
    for twin in (node1, node2):
        assert twin.exec("systemctl is-system-running").stdout.strip() == "running"
        assert twin.exec("docker info -f '{{.CgroupVersion}} {{.CgroupDriver}}'").stdout.split() == ["2", "systemd"]
        assert twin.exec("docker compose version --short").stdout.startswith("2.")
        assert "colleague-notebook" in twin.exec("docker ps --format '{{.Names}}'").stdout
        assert "Exited (0)" in twin.exec("docker ps -a --filter name=colleague-migration --format '{{.Status}}'").stdout
        assert twin.exec("curl -s localhost:9100").stdout
    assert "RUNNING" in node1.exec("supervisorctl status aigc-creator").stdout
    assert node1.exec("docker inspect -f '{{.State.Running}}' qwen38-fp8-sglang").stdout.strip() == "true"
    assert node2.exec("systemctl is-active vllm-qwen; systemctl is-enabled vllm-qwen").stdout.split() == ["active", "enabled"]
    assert node2.exec("curl -s localhost:30000").stdout


def test_models_have_their_declared_size_and_take_no_room(node1: Twin) -> None:
    folder = "/data/models/Qwen3.8-27B-FP8"
    declared = values(CHECKOUT / "hosts/fleet.yml")["models"]["qwen3.8-27b-fp8"]["size_bytes"]
    assert int(node1.exec(f"cat {folder}/* | head -c 0; du -bc {folder}/* | tail -1 | cut -f1").stdout) == declared
    assert int(node1.exec(f"du -sk {folder} | cut -f1").stdout) < 1024


def test_every_twin_has_an_identity_of_its_own(node1: Twin, node2: Twin) -> None:
    for question in ("cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "cat /etc/ssh/*.pub", "nvidia-smi -L"):
        assert node1.exec(question).stdout != node2.exec(question).stdout
    assert node1.exec("cat /etc/machine-id").stdout.strip() == node1.machine_id


def test_the_operator_logs_in_with_a_key_and_has_sudo_without_password(node1: Twin) -> None:
    asked = subprocess.run([*node1.ssh(), "id -un; sudo -n id -un"], capture_output=True, text=True, check=True, timeout=30)
    assert asked.stdout.split() == ["operator", "root"]


def test_a_changed_host_key_is_refused(lab: Lab, node1: Twin, node2: Twin, tmp_path: Path) -> None:
    swapped = tmp_path / "known_hosts"
    lines = (lab.dir / "known_hosts").read_text().replace(node1.address, "?").replace(node2.address, node1.address)
    swapped.write_text(lines.replace("?", node2.address))
    command = [word.replace(str(node1.known_hosts_file), str(swapped)) for word in node1.ssh()]
    asked = subprocess.run([*command, "true"], capture_output=True, text=True, check=False, timeout=30)
    assert asked.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in asked.stderr


def test_the_overlay_replaces_only_what_a_twin_differs_in(lab: Lab, node1: Twin) -> None:
    host, there = values(CHECKOUT / "hosts/node1.yml"), values(lab.overlay / "node1.yml")
    assert there.pop("address") == node1.address
    assert there.pop("machine_id") == node1.machine_id
    assert there.pop("ssh") == {
        "user": "operator",
        "port": 22,
        "identity_file": str(node1.identity_file),
        "known_hosts_file": str(node1.known_hosts_file),
    }
    assert there == {key: value for key, value in host.items() if key not in ("address", "ssh", "machine_id")}
    fleet, overlaid = values(CHECKOUT / "hosts/fleet.yml"), values(lab.overlay / "fleet.yml")
    assert overlaid["images"]["sglang"].pop("digest") == digests(lab)["v0.5.19-cu129"]
    for data in (fleet, overlaid):  # what else differs is meant
        data.pop("weights")
        for image in data["images"].values():
            image.pop("digest", None)
    assert overlaid == fleet
    comments = [
        line.strip() for line in (CHECKOUT / "hosts/node1.yml").read_text().splitlines() if line.strip().startswith("#")
    ]
    assert comments
    assert all(comment in (lab.overlay / "node1.yml").read_text() for comment in comments)


def test_aiming_at_the_twins_does_not_make_twins_of_twins(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LODGER_HOSTS", "")  # so that it is put back afterwards
    monkeypatch.delenv("LODGER_HOSTS")
    source = lab.root / "hosts"
    lab.aim()
    assert os.environ["LODGER_HOSTS"] == str(lab.overlay)
    assert Lab(lab.root).hosts == source


# ---------------------------------------------------------------- the simulated GPU


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


def test_a_pull_by_digest_fetches_an_image_that_was_not_there(lab: Lab) -> None:
    lab.reset(["node1", "node2"])
    for twin in (lab.twin("node1"), lab.twin("node2")):
        digest = digests(lab)["v0.5.19-cu129"]
        assert twin.exec(["docker", "image", "inspect", f"{ENGINE}@{digest}"], check=False).returncode != 0
        pull(twin, lab, "v0.5.19-cu129")
        assert twin.exec(["docker", "image", "inspect", f"{ENGINE}@{digest}"]).returncode == 0


# ---------------------------------------------------------------- accidents


def test_a_reboot_brings_everything_back_under_a_new_boot_id(fresh: Fresh) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    twin.reboot()
    wait_until(lambda: "RUNNING" in twin.exec("supervisorctl status", check=False).stdout, "the program runs again", 20)
    assert [line.split(":")[0] for line in judge.difference(before, judge.snapshot(twin))] == ["boot id"]


def test_a_twin_without_network_or_frozen_answers_nobody(node1: Twin) -> None:
    login = [*node1.ssh()[:1], "-o", "ConnectTimeout=1", *node1.ssh()[1:], "true"]
    with node1.without_network():
        assert subprocess.run(login, capture_output=True, check=False, timeout=20).returncode == 255
    node1.pause()
    try:
        assert subprocess.run(login, capture_output=True, check=False, timeout=20).returncode == 255
    finally:
        node1.unpause()
    wait_until(lambda: subprocess.run(login, capture_output=True, check=False).returncode == 0, "the twin answers", 20)


def test_up_mends_what_was_killed_and_keeps_what_was_deployed(lab: Lab, node1: Twin) -> None:
    node1.exec("touch /var/lib/marker")
    node1.kill()
    run(["docker", "kill", f"{lab.prefix}-depot"])
    lab.up()
    assert lab.status() == {"node1": "running", "node2": "running"}
    assert node1.exec("test -e /var/lib/marker; systemctl is-system-running").stdout.strip() == "running"
    assert digests(lab)


@pytest.mark.alone  # all labs of the machine share the daemon
def test_up_mends_a_killed_docker_daemon(lab: Lab, node1: Twin) -> None:
    pid = system.daemon_pid()
    if pid is None:
        pytest.skip("the machine's own Docker daemon is in use; it is not ours to kill")
    node1.exec("touch /var/lib/marker")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: system.daemon_pid() is None, "the daemon dies", 10)
    lab.up()
    assert lab.status() == {"node1": "running", "node2": "running"}
    assert node1.exec("test -e /var/lib/marker").returncode == 0


def test_up_makes_anew_a_twin_that_was_left_half_built(lab: Lab, node1: Twin) -> None:
    run(["docker", "rm", "-f", node1.container])
    run(["docker", "create", "--name", node1.container, "--label", f"lodger-lab={lab.id}", "--entrypoint", "true", _image(lab)])
    lab.up()
    assert node1.exec("systemctl is-system-running").stdout.strip() == "running"


def _image(lab: Lab) -> str:
    return run(["docker", "inspect", "-f", "{{.Config.Image}}", lab.twin("node2").container]).stdout.strip()


def test_a_reset_twin_is_as_it_was_at_first(lab: Lab, fresh: Fresh) -> None:
    twin = fresh("node1")
    pull(twin, lab, "v0.5.20")
    twin.exec("touch /etc/trace; rm -rf /data/models; docker rm -f colleague-notebook; supervisorctl stop aigc-creator")
    twin = fresh("node1")
    assert twin.exec("ls /etc/trace", check=False).returncode != 0
    assert "v0.5.20" not in twin.exec("docker images --digests").stdout
    assert "RUNNING" in twin.exec("supervisorctl status aigc-creator").stdout
    assert "colleague-notebook" in twin.exec("docker ps --format '{{.Names}}'").stdout
    assert twin.exec("ls /data/models").stdout.split() == ["Qwen3.8-27B-DFlash2", "Qwen3.8-27B-FP8"]


def test_two_checkouts_do_not_collide_and_down_leaves_nothing(lab: Lab, node1: Twin, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    shutil.copytree(CHECKOUT / "hosts", hosts)
    (hosts / "node2.yml").unlink()
    other = Lab(tmp_path, hosts)
    before = judge.snapshot(node1)
    other.up()
    theirs = other.twin("node1")
    assert theirs.address.rsplit(".", 1)[0] != node1.address.rsplit(".", 1)[0]
    assert theirs.exec("cat /etc/machine-id").stdout != node1.exec("cat /etc/machine-id").stdout
    other.down()
    for left in (["docker", "ps", "-a"], ["docker", "network", "ls"], ["docker", "volume", "ls"], ["cat", "/proc/mounts"]):
        assert other.id not in run(left).stdout
    assert not other.disks.exists()
    processes = [path for path in Path("/proc").glob("[0-9]*/cgroup") if other.prefix in _text(path)]
    assert not processes
    assert judge.difference(before, judge.snapshot(node1)) == []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_labs_that_come_up_side_by_side_clear_away_a_vanished_one_without_tripping(lab: Lab, tmp_path: Path) -> None:
    image = run(["docker", "inspect", "-f", "{{.Image}}", lab.twin("node1").container]).stdout.strip()
    gone = Lab(tmp_path / "vanished", lab.hosts)
    labels = [word for key, value in gone.labels("x").items() for word in ("--label", f"{key}={value}")]
    names = [f"{gone.prefix}-node{number}" for number in range(6)]
    for name in names:
        run(["docker", "run", "-d", "--name", name, *labels, "--entrypoint", "sleep", image, "600"])
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(forget_vanished) for _ in range(3)]:
            done.result()
    assert not set(names) & set(run(["docker", "ps", "-a", "--format", "{{.Names}}"]).stdout.split())


def test_without_apt_the_refusal_lists_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    with pytest.raises(LabError, match=r"debootstrap, docker\.io, iproute2, openssh-client"):
        system.ensure()


def test_an_unknown_host_is_refused_by_name(lab: Lab) -> None:
    with pytest.raises(LabError, match="there is no host node9"):
        lab.reset(["node9"])


# ---------------------------------------------------------------- the judge

HARM = {
    "a stopped foreign container": ("docker stop -t 0 colleague-notebook", "container colleague-notebook: status"),
    "a restarted foreign container": ("docker restart -t 0 colleague-notebook", "container colleague-notebook: started"),
    "a removed foreign container": ("docker rm colleague-migration", "container colleague-migration: is gone"),
    "a restarted unit": ("systemctl restart colleague-metrics", "unit colleague-metrics.service: pid"),
    "a disabled unit": ("systemctl disable -q colleague-metrics", "unit colleague-metrics.service: unit file"),
    "a stopped timer": ("systemctl stop colleague-backup.timer", "unit colleague-backup.timer: state"),
    "a restarted program": ("supervisorctl restart aigc-creator", "program aigc-creator: pid"),
    "a GPU no longer held": ("supervisorctl stop aigc-creator", "gpu /system.slice/supervisor.service: is gone"),
    "a closed port": ("systemctl stop colleague-metrics", "port tcp 0.0.0.0:9100: is gone"),
    "a changed file": (
        "f=/data/gluster/colleague/speech/run-1/notes.txt; touch -r $f /tmp/t; sed -i s/speech/SPEECH/ $f; touch -r /tmp/t $f",
        "file /data/gluster/colleague/speech/run-1/notes.txt: content",
    ),
    "a changed mode": ("chmod 600 /data/gluster/colleague/speech/run-0/notes.txt", "run-0/notes.txt: mode"),
    "a file left in /etc": ("touch /etc/forgotten", "file /etc/forgotten: is new"),
    "a weight file cut short": ("truncate -s 1G /data/models/Qwen3.8-27B-FP8/model-00001-of-00008.safetensors", "size"),
    "a network left behind": ("docker network create shared -d bridge", "network shared: is new"),
    "a removed volume": (
        "docker rm -f colleague-notebook && docker volume rm colleague-work",
        "volume colleague-work: is gone",
    ),
    "an untagged image": (
        "docker tag colleague/notebook:2024.1 x:y && docker rmi colleague/notebook:2024.1",
        "image colleague",
    ),
    "a lost mount": ("umount /data/gluster", "mount /data/gluster: is gone"),
}


@pytest.fixture(scope="module")
def harmed(lab: Lab) -> dict[str, list[str]]:
    """What the judge says of each harm, done one after another to the same twin."""
    lab.reset(["node1"])
    twin, said = lab.twin("node1"), {}
    before = judge.snapshot(twin)
    for harm, (command, _) in HARM.items():
        twin.exec(command)
        after = judge.snapshot(twin)
        said[harm] = judge.difference(before, after)
        before = after
    lab.reset(["node1"])
    return said


@pytest.mark.parametrize("harm", HARM)
def test_the_judge_names(harmed: dict[str, list[str]], harm: str) -> None:
    assert [line for line in harmed[harm] if HARM[harm][1] in line], harmed[harm]


def test_the_judge_is_silent_about_what_is_lodgers_and_about_logins(fresh: Fresh) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    twin.exec("mkdir -p /opt/lodger/releases /etc/lodger /var/lib/lodger && touch /opt/lodger/current /etc/lodger/x")
    twin.write(
        "/etc/systemd/system/lodger-worker-a.service", "[Service]\nExecStart=sleep 60\n[Install]\nWantedBy=multi-user.target\n"
    )
    twin.exec("systemctl daemon-reload && systemctl enable -q --now lodger-worker-a")
    twin.exec("docker run -d --label io.lodger.host=node1 --name lodger-worker-a-engine-1 colleague/notebook:2024.1 sleep 60")
    subprocess.run(
        [*twin.ssh(), "sudo -n systemctl daemon-reload; sudo -n docker ps"], capture_output=True, check=True, timeout=30
    )
    assert judge.difference(before, judge.snapshot(twin)) == []


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    ask = "import sys, lab.judge; print([name for name in sys.modules if name.split('.')[0] == 'lodger'])"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert asked.stdout.strip() == "[]"


def test_the_judge_lets_a_declared_restart_pass_but_nothing_else(fresh: Fresh) -> None:
    twin = fresh("node1")
    before = judge.snapshot(twin)
    twin.exec("supervisorctl restart aigc-creator; chmod 600 /etc/hosts")
    after = judge.snapshot(twin)
    paused = {("program", "aigc-creator")}
    said = judge.difference(before, after, restarted=lambda kind, name: (kind, name) in paused)
    assert [line.split(": ")[0] for line in said] == ["file /etc/hosts"]
