"""The lab mends what was killed, resets what was changed, keeps labs apart, and leaves nothing behind."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import judge, system
from lab.lab import Lab, forget_vanished
from lab.run import CHECKOUT, LabError, run
from lab.twin import Twin
from tests.twins.lab.registry import digests, pull
from tests.twins.site import Fresh

TWINS = ()


def test_up_mends_what_was_killed_and_keeps_what_was_deployed(lab: Lab, node1: Twin) -> None:
    node1.exec("touch /var/lib/marker")
    node1.kill()
    run(["docker", "kill", f"{lab.prefix}-depot"])
    lab.up()
    assert lab.status() == {"node1": "running", "node2": "running"}
    assert node1.exec("test -e /var/lib/marker; systemctl is-system-running").stdout.strip() == "running"
    assert digests(lab)


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
