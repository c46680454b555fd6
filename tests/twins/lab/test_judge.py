"""The judge sees what happens to others, and nothing else."""

import subprocess
import sys

import pytest

from lab import judge
from lab.lab import Lab
from lab.run import CHECKOUT, PATIENCE
from tests.twins.site import Fresh

TWINS = ()
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
        [*twin.ssh(), "sudo -n systemctl daemon-reload; sudo -n docker ps"], capture_output=True, check=True, timeout=PATIENCE
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
