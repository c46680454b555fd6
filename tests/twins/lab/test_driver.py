"""A twin's driver behaves as a host's does: the upgrade by hand, step by step, with all that goes wrong on the way, and back."""

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from lab import judge
from lab.driver import faults, holders
from lab.driver.changes import of_an_upgrade
from lab.lab import Lab
from lab.run import wait_until
from lab.twin import Twin

TWINS = ()
OLD, NEW = "545.23.06", "580.126.09"
STACK = "nvidia-dkms-580 nvidia-kernel-source-580 libnvidia-compute-580 nvidia-utils-580"
OLD_STACK = [
    "libnvidia-compute-545",
    "nvidia-compute-utils-545",
    "nvidia-dkms-545",
    "nvidia-kernel-common-545",
    "nvidia-kernel-source-545",
    "nvidia-utils-545",
]
MODULES = "nvidia_uvm nvidia_drm nvidia_modeset nvidia"
Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def before(lab: Lab) -> Twin:
    """A host with the old driver, as it was before the upgrade."""
    lab.reset(["node1"], driver=OLD)
    return lab.twin("node1")


@pytest.fixture
def twin(lab: Lab, before: Twin) -> Iterator[Twin]:
    """The same twin; faults are switched off after each test, and one that does not leave it at the old driver costs a reset."""
    yield before
    faults.switch_off(before)
    if loaded(before) != OLD or installed(before) != dict.fromkeys(OLD_STACK, "ii"):
        lab.reset(["node1"], driver=OLD)


def said(twin: Twin, command: str) -> Run:
    return twin.exec(command, check=False)


def apt(twin: Twin, words: str) -> tuple[int, str]:
    """Return apt-get's exit code and all that is said; dpkg below it speaks through a terminal."""
    asked = said(twin, f"NEEDRESTART_SUSPEND=1 apt-get {words} 2>&1")
    return asked.returncode, asked.stdout.replace("\r", "")


def installed(twin: Twin) -> dict[str, str]:
    listed = twin.exec("dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' '*nvidia*'").stdout.splitlines()
    return {name: status for name, status in map(str.split, listed) if status[1] not in "nc"}


def loaded(twin: Twin) -> str:
    found = said(twin, "cat /proc/driver/nvidia/version").stdout.split("Module  ")
    return found[1].split()[0] if len(found) > 1 else ""


def lsmod(twin: Twin) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[2:] for line in twin.exec("lsmod").stdout.splitlines()[1:]}


def dkms(twin: Twin) -> str:
    return twin.exec("dkms status").stdout.strip()


def devices(twin: Twin) -> list[str]:
    return said(twin, "cd /dev && ls -d nvidia*").stdout.split()


def what_changed(twin: Twin, before: judge.Snapshot) -> list[str]:
    """Return what the judge finds changed but the driver itself and those that were stopped and started."""
    paused = {("program", "aigc-creator"), ("container", "qwen38-fp8-sglang")}
    after = judge.snapshot(twin)
    return judge.difference(before, after, expected=of_an_upgrade, restarted=lambda kind, name: (kind, name) in paused)


def assert_at_peace(twin: Twin) -> None:
    assert twin.exec("dpkg --audit").stdout == ""
    assert twin.exec("apt-get check -qq").returncode == 0


def stop_holders(twin: Twin) -> None:
    twin.exec("supervisorctl stop aigc-creator; docker stop -t 1 qwen38-fp8-sglang; systemctl stop nvidia-persistenced || true")


def start_holders(twin: Twin) -> None:
    twin.exec("supervisorctl start aigc-creator; docker start qwen38-fp8-sglang; systemctl start nvidia-persistenced")


def go_back(twin: Twin) -> None:
    """Be at the old driver again, by its downloaded packages, with it loaded and everybody running."""
    stop_holders(twin)
    twin.exec(
        "dpkg --configure -a; dpkg --remove --force-depends $(dpkg-query -W -f '${Package}\\n' '*nvidia*-580')", check=False
    )
    twin.exec(f"cd /root && apt-get download -q {' '.join(f'{name}={OLD}-0ubuntu1' for name in OLD_STACK)}")
    twin.exec("dpkg -i /root/*-545_*.deb && rm /root/*.deb; systemctl stop nvidia-persistenced")
    twin.exec(f"rmmod {MODULES}", check=False)
    twin.exec("modprobe nvidia")
    start_holders(twin)
    assert loaded(twin) == OLD
    assert_at_peace(twin)


# ---------------------------------------------------------------- a host with the old driver


def test_a_twin_starts_with_the_driver_it_was_asked_to_start_with(lab: Lab, twin: Twin) -> None:
    assert installed(twin) == dict.fromkeys(OLD_STACK, "ii")
    assert twin.exec("apt-mark showhold").stdout == ""
    kernel = twin.exec("uname -r").stdout.strip()
    assert dkms(twin) == f"nvidia/{OLD}, {kernel}, x86_64: installed"
    assert loaded(twin) == OLD
    assert twin.exec("modinfo -F version nvidia").stdout.strip() == OLD
    assert json.loads(twin.exec("head -n 1 /dev/nvidia3").stdout)["driver"] == OLD
    overview = twin.exec("nvidia-smi").stdout
    assert f"NVIDIA-SMI {OLD}" in overview
    assert "CUDA Version: 12.3" in overview
    assert twin.exec("systemctl is-active nvidia-persistenced").stdout.strip() == "active"
    assert twin.exec("systemctl is-system-running").stdout.strip() == "running"
    assert_at_peace(twin)
    lab.up()
    assert loaded(twin) == OLD, "up keeps what reset made"


def test_modules_are_counted_as_the_kernel_counts_them(twin: Twin) -> None:
    modules = lsmod(twin)
    assert list(modules) == MODULES.split()
    assert modules["nvidia"][1] == "nvidia_uvm,nvidia_modeset"
    assert modules["nvidia_modeset"] == ["1", "nvidia_drm"]
    daemon_and_two_holders = 5 + 2 * 5  # each has four GPUs and nvidiactl open
    assert int(modules["nvidia"][0]) == daemon_and_two_holders + 2
    twin.exec("systemctl stop nvidia-persistenced")
    assert int(lsmod(twin)["nvidia"][0]) == daemon_and_two_holders + 2 - 5
    twin.exec("systemctl start nvidia-persistenced")
    as_operator = twin.exec("lsmod", user="operator").stdout
    assert as_operator == twin.exec("lsmod").stdout


def test_programs_leave_other_modules_to_the_real_ones(twin: Twin) -> None:
    for command in ("modprobe ext9", "modinfo ext9", "rmmod ext9"):
        asked = said(twin, command)
        assert asked.returncode == 1
        assert command.split()[0] in asked.stderr
        assert "ext9" in asked.stderr


def test_apt_offers_both_branches_without_a_mirror(twin: Twin) -> None:
    assert twin.exec("apt-get update -q").returncode == 0
    for name in (*STACK.split(), "nvidia-utils-545", "nvidia-compute-utils-545"):
        version = OLD if name.endswith("545") else NEW
        assert f"{name} | {version}-0ubuntu1 | " in twin.exec(["apt-cache", "madison", name]).stdout
    twin.exec(
        f"cd /tmp && apt-get download -q nvidia-utils-545={OLD}-0ubuntu1 && dpkg-deb -I nvidia-utils-545_*.deb && rm *.deb"
    )


# ---------------------------------------------------------------- the upgrade by hand


def test_the_metapackage_cannot_be_installed(twin: Twin) -> None:
    asked = said(twin, "apt-get install -y nvidia-driver-580")
    assert asked.returncode == 100
    assert "libnvidia-gl-580 : Depends:" in asked.stdout
    assert "E: Unable to correct problems, you have held broken packages." in asked.stderr
    assert set(installed(twin).values()) == {"ii"}


def assert_halfway(twin: Twin) -> None:
    """User land is new, the module is old, and who holds a GPU still has it."""
    mismatch = said(twin, "nvidia-smi")
    assert (mismatch.returncode, mismatch.stdout) == (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n",
    )
    assert "CUDA error 803" in said(twin, "/opt/aigc-creator/service.py --gpus 0").stderr
    assert "driver/library version mismatch" in said(twin, "docker run --rm --gpus all colleague/notebook:2024.1 true").stderr
    blocked = said(twin, "rmmod nvidia")
    assert (blocked.returncode, blocked.stderr) == (1, "rmmod: ERROR: Module nvidia is in use by: nvidia_uvm nvidia_modeset\n")
    blocked = said(twin, f"rmmod {MODULES}")
    assert blocked.returncode == 1
    assert "rmmod: ERROR: Module nvidia_uvm is in use\n" in blocked.stderr
    assert "RUNNING" in twin.exec("supervisorctl status aigc-creator").stdout
    # What could be unloaded is gone, and what now lies on disk does not fit the old nvidia.
    assert set(lsmod(twin)) == {"nvidia_uvm", "nvidia"}
    unfit = said(twin, "modprobe nvidia_modeset")
    assert (unfit.returncode, unfit.stderr) == (1, "modprobe: ERROR: could not insert 'nvidia_modeset': Invalid argument\n")


def test_the_upgrade_by_hand_and_back(twin: Twin) -> None:
    at_first = judge.snapshot(twin)
    simulated = twin.exec(f"apt-get -s install -y {STACK}").stdout
    assert "Remv nvidia-utils-545" in simulated
    assert "Inst nvidia-utils-580" in simulated

    # dpkg trips over a file that an old package owns ...
    code, text = apt(twin, f"install -y {STACK}")
    assert code == 100
    assert "dpkg: error processing archive " in text
    conflict = f"trying to overwrite '/usr/bin/nvidia-powerd', which is also in package nvidia-compute-utils-545 {OLD}-0ubuntu1"
    assert conflict in text
    assert "E: Sub-process /usr/bin/dpkg returned an error code (1)" in text
    assert "have been unpacked but not yet configured" in twin.exec("dpkg --audit").stdout
    assert twin.exec("dpkg-query -S /usr/bin/nvidia-powerd").stdout.startswith("nvidia-compute-utils-545: ")

    # ... and the way out is this.
    twin.exec("dpkg --remove --force-depends nvidia-compute-utils-545")
    twin.exec("export NEEDRESTART_SUSPEND=1; dpkg --configure -a && apt-get -f install -y")
    assert_at_peace(twin)
    assert {name for name in installed(twin) if name.endswith("545")} == set()
    assert set(STACK.split()) <= set(installed(twin))
    assert dkms(twin).startswith(f"nvidia/{NEW}, ")
    assert dkms(twin).endswith(": installed")

    assert_halfway(twin)

    # Those who hold it stop; then it can be swapped.
    twin.exec("supervisorctl stop aigc-creator && docker stop -t 1 qwen38-fp8-sglang")
    twin.exec("rmmod nvidia_uvm nvidia")
    gone = said(twin, "nvidia-smi")
    assert gone.returncode == 9
    assert gone.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert devices(twin) == []
    assert loaded(twin) == ""
    assert "driver not loaded" in said(twin, "docker run --rm --gpus all colleague/notebook:2024.1 true").stderr
    twin.exec("modprobe nvidia nvidia_uvm")
    assert loaded(twin) == NEW
    assert sorted(devices(twin)) == sorted(
        [*(f"nvidia{n}" for n in range(4)), "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]
    )
    assert twin.exec("nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.split() == [NEW] * 4
    twin.exec("supervisorctl start aigc-creator && docker start qwen38-fp8-sglang")
    assert "RUNNING" in twin.exec("supervisorctl status aigc-creator").stdout
    inside = twin.exec("docker exec qwen38-fp8-sglang nvidia-smi").stdout
    assert f"Driver Version: {NEW}" in inside
    assert what_changed(twin, at_first) == []

    go_back(twin)
    assert what_changed(twin, at_first) == []
    assert set(installed(twin).values()) == {"ii"}
    assert {name[-3:] for name in installed(twin)} == {"545"}
    assert twin.exec("systemctl is-active nvidia-persistenced").stdout.strip() == "active"
    assert twin.exec("nvidia-smi -L").stdout.count("GPU") >= 4


def test_after_a_power_loss_while_dkms_builds_there_is_no_driver_until_dpkg_is_at_peace(twin: Twin) -> None:
    faults.switch_on(twin, "slow-dkms-build", 3600)
    twin.exec("dpkg --remove --force-depends nvidia-compute-utils-545")
    twin.exec(f"systemd-run -q --collect apt-get install -qy {STACK}")
    building = f"test -e /var/lib/dkms/nvidia/{NEW}/build/make.log"
    wait_until(lambda: said(twin, building).returncode == 0, "dkms builds")
    assert loaded(twin) == OLD
    twin.kill()
    twin.start()
    faults.switch_off(twin)
    assert loaded(twin) == ""
    assert said(twin, "nvidia-smi").returncode == 9
    assert "nvidia-dkms-580" in twin.exec("dpkg --audit").stdout
    twin.exec("dpkg --configure -a && apt-get -f install -qy && modprobe nvidia")
    assert_at_peace(twin)
    assert loaded(twin) == NEW
    twin.reboot()
    assert loaded(twin) == NEW
    assert twin.exec("nvidia-smi -L").returncode == 0
    assert "RUNNING" in twin.exec("supervisorctl status aigc-creator").stdout


# ---------------------------------------------------------------- what can go wrong


def test_without_headers_nothing_is_built_and_apt_does_not_mind(twin: Twin) -> None:
    faults.remove_headers(twin)
    assert said(twin, "test -e /lib/modules/$(uname -r)/build").returncode == 1
    twin.exec("dpkg --remove --force-depends nvidia-compute-utils-545")
    code, text = apt(twin, f"install -y {STACK}")
    assert code == 0
    assert "was skipped since the\nkernel headers for this kernel do not seem to be installed." in text
    assert dkms(twin) == f"nvidia/{NEW}: added"
    asked = said(twin, f"dkms build nvidia/{NEW}")
    assert asked.returncode == 21
    assert asked.stderr.startswith("Error! Your kernel headers for kernel ")
    twin.exec("apt-get install -qy linux-headers-$(uname -r)")
    twin.exec(f"dkms install nvidia/{NEW}")
    assert dkms(twin).endswith(": installed")
    go_back(twin)


def test_a_failed_build_leaves_the_package_unconfigured(twin: Twin) -> None:
    faults.switch_on(twin, "dkms-build-fails", NEW)
    twin.exec("dpkg --remove --force-depends nvidia-compute-utils-545")
    code, text = apt(twin, f"install -y {STACK}")
    assert code == 100
    assert "Error! Bad return status for module build on kernel: " in text
    assert "nvidia-dkms-580 package post-installation script subprocess returned error exit status 10" in text
    assert installed(twin)["nvidia-dkms-580"] == "iF"
    assert "error" in twin.exec(f"cat /var/lib/dkms/nvidia/{NEW}/build/make.log").stdout
    assert loaded(twin) == OLD
    go_back(twin)  # with the fault still there, which is the new version's own


def test_a_phantom_user_keeps_the_module_and_no_process_explains_it(twin: Twin) -> None:
    faults.switch_on(twin, "phantom-user")
    stop_holders(twin)
    asked = said(twin, f"rmmod {MODULES}")
    assert (asked.returncode, asked.stderr) == (1, "rmmod: ERROR: Module nvidia is in use\n")
    assert lsmod(twin) == {"nvidia": ["1"]}
    assert said(twin, "find /proc/[0-9]*/fd -lname '/dev/nvidia*'").stdout == ""
    assert said(twin, "modprobe -r nvidia").stderr == "modprobe: FATAL: Module nvidia is in use.\n"
    faults.switch_off(twin)
    twin.exec("modprobe -r nvidia && modprobe nvidia")
    start_holders(twin)
    assert loaded(twin) == OLD


def test_a_version_that_the_kernel_does_not_take(twin: Twin) -> None:
    faults.switch_on(twin, "refused-version", OLD)
    stop_holders(twin)
    twin.exec(f"rmmod {MODULES}")
    asked = said(twin, "modprobe nvidia")
    assert (asked.returncode, asked.stderr) == (1, "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n")
    assert devices(twin) == []
    twin.reboot()
    assert loaded(twin) == "", "the machine comes up without it"
    faults.switch_off(twin)
    twin.exec("modprobe -a nvidia nvidia_uvm")
    start_holders(twin)


def test_dpkg_waits_for_an_unattended_upgrade(twin: Twin) -> None:
    with faults.dpkg_locked(twin):
        asked = said(twin, "apt-get install -qy nvidia-utils-580")
        assert asked.returncode == 100
        assert "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process" in asked.stderr
    assert twin.exec("apt-get install -qs nvidia-utils-580").returncode == 0


def test_slow_steps_take_their_time(twin: Twin) -> None:
    faults.switch_on(twin, "slow-rmmod", 0.8)
    faults.switch_on(twin, "slow-postinst", 0.8)
    stop_holders(twin)
    began = time.monotonic()
    twin.exec("rmmod nvidia_uvm")
    twin.exec("apt-get install -qy --reinstall nvidia-kernel-common-545")
    assert time.monotonic() - began > 1.6
    faults.switch_off(twin)
    twin.exec("modprobe nvidia_uvm")
    start_holders(twin)


# ---------------------------------------------------------------- who holds the GPUs


def test_holders_belong_to_whom_they_should(twin: Twin) -> None:
    started = {
        "user@1001.service/app.slice/training.service": holders.user_unit(twin),
        "supervisor.service": holders.grouped_program(twin),
        "docker-": holders.compose_project(twin),
        "docker": holders.container(twin),
        "user-1001.slice/session-": holders.process(twin),
    }
    for group, pid in started.items():
        assert group in twin.exec(f"cat /proc/{pid}/cgroup").stdout
    assert "images:upscaler" in twin.exec("supervisorctl status").stdout
    label = '{{index .Config.Labels "com.docker.compose.project"}}'
    assert twin.exec(["docker", "inspect", "-f", label, "captioning-app-1"]).stdout.strip() == "captioning"
    apps = twin.exec("nvidia-smi --query-compute-apps=pid --format=csv,noheader").stdout.split()
    assert set(map(str, started.values())) <= set(apps)
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert twin.exec(f"docker exec experiment readlink {library}").stdout == f"libcuda.so.{OLD}\n"


def test_a_reset_without_a_driver_is_the_declared_host_again(lab: Lab, before: Twin) -> None:
    twin = before
    lab.reset(["node1"])
    wait_until(lambda: loaded(twin) == NEW, "the declared driver is loaded")
    assert set(installed(twin)) == {*STACK.split(), "nvidia-kernel-common-580"}
    assert said(twin, "systemctl cat nvidia-persistenced").returncode != 0
