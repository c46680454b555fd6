"""What a host, a link or an inventory can be like instead of well: one sentence, a hint, the right exit code, nothing changed."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import judge
from lab.lab import Lab
from lab.run import PATIENCE, wait_until
from lab.twin import Twin
from lodger.host.command import run
from lodger.host.ssh import Ssh
from lodger.inventory.load import load
from tests.twins.site import Ran, Site

TWINS = ("node1",)
OURS = "find /opt/lodger /var/lib/lodger /etc/systemd/system/lodger-* -exec stat -c '%n %s %f' {} + 2>/dev/null | sort"


@pytest.fixture(scope="module")
def clean(lab: Lab) -> Twin:
    """node1 as Lodger has never seen it. Every test here leaves it like that."""
    return lab.twin("node1")


@contextlib.contextmanager
def untouched(twin: Twin) -> Iterator[None]:
    """Check that the block changes nothing on the twin, by the lab's own eyes."""
    before, ours = judge.snapshot(twin), twin.exec(OURS).stdout
    yield
    assert judge.difference(before, judge.snapshot(twin)) == []
    assert twin.exec(OURS).stdout == ours


def one_sentence(ran: Ran, code: int, *words: str) -> dict[str, Any]:
    """Check that the run said one sentence with every word, gave a hint, and ended with `code`; return its JSON error."""
    assert ran.code == code, str(ran)
    error: dict[str, Any] = ran.one["error"]
    said = f"{error['what']} ({error['cause']}) {error['hint']}"
    assert "\n" not in error["what"], said
    assert error["hint"], said
    for word in words:
        assert word in said, said
    assert "Traceback" not in ran.err
    return error


def ssh(site: Site, **settings: Any) -> None:
    site.edit("node1", lambda host: host["ssh"].update(settings))


# ---------------------------------------------------------------- the link


def test_host_that_does_not_answer(site: Site, clean: Twin) -> None:
    nobody = clean.address.rpartition(".")[0] + ".250"
    site.edit("node1", lambda host: host.update(address=nobody))
    one_sentence(site.ops("deploy", "--host", "node1", "--json"), 1, nobody, "cannot be reached")


def test_host_that_answers_and_goes_silent(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        site.edit("node1", lambda host: host.update(address="127.0.0.1"))
        ssh(site, port=server.getsockname()[1])
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 1, "cannot be reached")


def test_host_that_falls_silent_during_a_command_is_given_up(site: Site, clean: Twin) -> None:
    asked, smi = "/run/asked", "/usr/bin/nvidia-smi"
    clean.exec(f"mv {smi} {smi}.away")
    clean.write(smi, f"#!/bin/sh\ntouch {asked}\nexec sleep 3600\n", "755")
    try:
        process = site.start("plan", "--host", "node1", "--json")
        wait_until(lambda: clean.exec(["test", "-e", asked], check=False).returncode == 0, "a fact is read")
        clean.pause()
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        clean.unpause()
        clean.exec(f"mv {smi}.away {smi}; rm {asked}; pkill -x sleep || true")
    one_sentence(Ran(process.returncode, out, err), 1, "the host sent nothing for")


def test_key_that_the_host_does_not_know(site: Site, clean: Twin, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    ssh(site, identity_file=str(key))
    with untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 1, "does not accept our key", "ssh -v")


def test_changed_host_key(site: Site, clean: Twin, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    known = tmp_path / "known_hosts"
    known.write_text(f"{clean.address} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}\n")
    ssh(site, known_hosts_file=str(known))
    with untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 1, "host key has changed", "ssh-keygen -R")


def test_unknown_host_key_is_not_accepted(site: Site, clean: Twin, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    ssh(site, known_hosts_file=str(tmp_path / "known_hosts"))
    with untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 1, "not known", "SHA256:")
    assert (tmp_path / "known_hosts").read_text() == ""


def test_wrong_machine_at_the_address(site: Site, clean: Twin) -> None:
    site.edit("node1", lambda host: host.update(machine_id="0" * 32))
    with untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 3, "wrong machine", clean.machine_id)


def test_machine_whose_identity_is_not_recorded(site: Site, clean: Twin) -> None:
    site.edit("node1", lambda host: host.pop("machine_id"))
    with untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 3, "not recorded", f'machine_id: "{clean.machine_id}"')


# ---------------------------------------------------------------- the account


@contextlib.contextmanager
def sudoers(twin: Twin, rule: str) -> Iterator[None]:
    files = twin.exec("grep -l operator /etc/sudoers.d/* /etc/sudoers").stdout.split()
    twin.exec("mkdir -p /tmp/kept && cp -a /etc/sudoers.d /etc/sudoers /tmp/kept/")
    try:
        twin.exec(["sed", "-i", f"s/.*operator.*/{rule}/", *files])
        yield
    finally:
        twin.exec("cp -a /tmp/kept/sudoers /etc/ && cp -a /tmp/kept/sudoers.d/. /etc/sudoers.d/ && rm -r /tmp/kept")


@pytest.mark.parametrize("rule", ["operator ALL=(ALL) ALL", "# nobody"], ids=["asks for a password", "refused"])
def test_sudo_that_does_not_let_us(rule: str, site: Site, clean: Twin) -> None:
    with sudoers(clean, rule):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 1, "sudo", "passwordless")


def test_login_shell_that_prints_a_banner_is_no_obstacle(site: Site, clean: Twin) -> None:
    home = clean.exec("getent passwd operator | cut -d: -f6").stdout.strip()
    clean.exec(
        f"cp -a {home}/.bashrc /tmp/bashrc 2>/dev/null; echo 'echo \"*** lodger-fact maintenance tonight ***\"' > {home}/.bashrc"
    )
    try:
        assert "lodger-fact" in subprocess.run([*clean.ssh(), "true"], capture_output=True, text=True, check=True).stdout
        assert site.well("plan", "--host", "node1", "--json").one["outcome"] == "would change"
        with Ssh(load(site.hosts).hosts["node1"]) as connection:  # facts have marks of their own; any other command has not
            assert connection.run(run("id", "-un", sudo=False)).stdout == "operator\n"
    finally:
        clean.exec(f"if [ -e /tmp/bashrc ]; then mv /tmp/bashrc {home}/.bashrc; else rm {home}/.bashrc; fi")


def test_login_shell_that_runs_nothing(site: Site, clean: Twin) -> None:
    clean.exec("usermod -s /usr/sbin/nologin operator")
    try:
        one_sentence(site.ops("plan", "--host", "node1", "--json"), 1, "login shell")
    finally:
        clean.exec("usermod -s /bin/bash operator")


def test_locale_that_is_not_english_is_no_obstacle(site: Site, clean: Twin) -> None:
    locale = next(name for name in clean.exec("locale -a").stdout.split() if not name.startswith(("C", "POSIX", "en")))
    clean.exec(
        f"cp -a /etc/default/locale /tmp/locale 2>/dev/null; printf 'LANG={locale}\\nLC_ALL={locale}\\n' > /etc/default/locale"
    )
    try:
        assert locale in subprocess.run([*clean.ssh(), "env"], capture_output=True, text=True, check=True).stdout
        assert site.well("plan", "--host", "node1", "--json").one["outcome"] == "would change"
        with sudoers(clean, "# nobody"):
            # In English, as whoever looks the message up needs it.
            one_sentence(site.ops("plan", "--host", "node1", "--json"), 1, "a password is required", "passwordless")
    finally:
        clean.exec("if [ -e /tmp/locale ]; then mv /tmp/locale /etc/default/locale; else rm /etc/default/locale; fi")


# ---------------------------------------------------------------- the machine


@contextlib.contextmanager
def changed(twin: Twin, change: str, back: str) -> Iterator[None]:
    twin.exec(change)
    try:
        yield
    finally:
        twin.exec(back)


# What is broken -> how it is broken, how it is mended, and words that the refusal must have.
BROKEN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "full disk": (
        "mkdir /opt/lodger && mount -t tmpfs -o size=1m tmpfs /opt/lodger",
        "umount /opt/lodger && rmdir /opt/lodger",
        ("disk below /opt/lodger is full",),
    ),
    "full disk below the ledger": (
        "mkdir /var/lib/lodger && mount -t tmpfs -o size=4k tmpfs /var/lib/lodger && cat /dev/zero > /var/lib/lodger/fill || true",
        "umount /var/lib/lodger && rmdir /var/lib/lodger",
        ("disk below /var/lib/lodger is full",),
    ),
    "read-only /opt": (
        "mount --bind /opt /opt && mount -o remount,ro,bind /opt",
        "umount /opt",
        ("/opt/lodger cannot be written", "read-only"),
    ),
    "no Docker": (
        "mv /usr/bin/docker /usr/bin/docker.away",
        "mv /usr/bin/docker.away /usr/bin/docker",
        ("Docker is not installed",),
    ),
    "no Compose": (
        "for d in /usr/libexec/docker /usr/lib/docker; do [ ! -d $d/cli-plugins ] || mv $d/cli-plugins $d/cli-plugins.away; done",
        "for d in /usr/libexec/docker /usr/lib/docker; do [ ! -d $d/cli-plugins.away ] || mv $d/cli-plugins.away $d/cli-plugins; done",
        ("Compose v2 is missing",),
    ),
    "no GPU hook": (
        "p=$(command -v nvidia-container-runtime-hook) && mv $p $p.away",
        "for p in /usr/bin /usr/local/bin /usr/sbin; do n=$p/nvidia-container-runtime-hook; [ ! -e $n.away ] || mv $n.away $n; done",
        ("cannot give GPUs to containers", "nvidia-container-toolkit"),
    ),
    "no curl": ("mv /usr/bin/curl /usr/bin/curl.away", "mv /usr/bin/curl.away /usr/bin/curl", ("curl is missing",)),
    "weights cut short": (
        "cd /data/models/Qwen3.8-27B-FP8 && f=$(ls *.safetensors | head -1) && mv $f /data/kept && truncate -s 1 $f && echo $f > /data/name",
        "cd /data/models/Qwen3.8-27B-FP8 && mv /data/kept $(cat /data/name) && rm /data/name",
        ("incomplete",),
    ),
    "a unit of our name": (
        "printf '[Service]\\nExecStart=/bin/sleep 9999\\n' > /etc/systemd/system/lodger-worker-a.service && systemctl daemon-reload",
        "rm /etc/systemd/system/lodger-worker-a.service && systemctl daemon-reload",
        ("lodger-worker-a.service is not ours",),
    ),
    "a container of our name": (
        "docker run -d --name lodger-worker-a $(docker inspect -f '{{.Config.Image}}' colleague-notebook) sleep 9999",
        "docker rm -f lodger-worker-a",
        ("container named lodger-worker-a is not ours",),
    ),
    "somebody on a GPU": (
        "useradd -m alex 2>/dev/null; chmod a+rw /dev/nvidia2; systemd-run -q --uid=alex --unit=alex-training"
        " python3 -c 'import time; f = open(\"/dev/nvidia2\"); time.sleep(9999)'",
        "systemctl stop alex-training; userdel -r alex 2>/dev/null || true",
        ("GPU 2 is held by pid", "user alex", "alex-training.service", "neighbours:"),
    ),
    "somebody in a container on a GPU": (
        "docker run -d --name alex-box --gpus device=1 $(docker inspect -f '{{.Config.Image}}' colleague-notebook)"
        " python3 -c 'import time; f = open(\"/dev/nvidia1\"); time.sleep(9999)'",
        "docker rm -f alex-box",
        ("GPU 1 is held by pid", "container alex-box"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_would_make_a_deploy_fail_is_refused_before_anything_is_changed(name: str, site: Site, clean: Twin) -> None:
    change, back, words = BROKEN[name]
    with changed(clean, change, back), untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 3, *words)


def test_every_reason_is_said_at_once(site: Site, clean: Twin) -> None:
    with (
        changed(clean, BROKEN["no curl"][0], BROKEN["no curl"][1]),
        changed(clean, BROKEN["weights cut short"][0], BROKEN["weights cut short"][1]),
    ):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 3, "curl is missing", "incomplete")


def test_driver_that_is_not_the_declared_one(site: Site, clean: Twin) -> None:
    site.edit("node1", lambda host: host.update(driver="575.57.08"))
    with untouched(clean):
        one_sentence(
            site.ops("deploy", "--host", "node1", "--json"), 3, "driver is not the declared one", "580.126.09", "575.57.08"
        )


def test_port_that_somebody_listens_on(site: Site, clean: Twin) -> None:
    site.edit("node1", lambda host: host["workers"]["a"].update(port=9100))
    with untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 3, "port 9100 is taken", "colleague-metrics")


# ---------------------------------------------------------------- the lock


def held(twin: Twin, age: int, **owner: Any) -> tuple[str, str]:
    """Return how a lock comes to be there, and goes."""
    text = json.dumps({"user": "sam", "run": "earlier", "pid": 1, "started": 1, "machine": "another", **owner})
    del twin
    put = f"mkdir -p /var/lib/lodger && echo '{text}' > /var/lib/lodger/lock && touch -d '-{age} seconds' /var/lib/lodger/lock"
    return put, "rm -rf /var/lib/lodger"


def test_live_lock_is_never_broken(site: Site, clean: Twin) -> None:
    with changed(clean, *held(clean, 10)), untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json", "--break-lock"), 3, "another run holds", "sam")


def test_expired_lock_needs_to_be_broken_by_hand(site: Site, clean: Twin) -> None:
    with changed(clean, *held(clean, 1000)), untouched(clean):
        one_sentence(site.ops("deploy", "--host", "node1", "--json"), 3, "another run holds", "--break-lock")


# ---------------------------------------------------------------- the inventory and the command line


def test_mistakes_of_an_inventory_come_together_with_file_and_line(site: Site) -> None:
    path = site.hosts / "node1.yml"
    path.write_text(path.read_text().replace("port: 30000", "port: 030000").replace("count: 4", "cuont: 4"))
    ran = site.ops("deploy", "--host", "node1")
    assert ran.code == 2
    assert ran.err.count("node1.yml:") >= 2, ran.err
    assert "count" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["deploy"],
        ["deploy", "--host", "node9"],
        ["deploy", "--host", ""],
        ["deploi"],
        ["deploy", "--no-such"],
        ["render", "--host", "node1"],
    ],
)
def test_bad_usage_ends_with_exit_2_and_a_hint(words: list[str], site: Site) -> None:
    ran = site.ops(*words)
    assert ran.code == 2, str(ran)
    assert "hint" in ran.err


def test_no_inventory_at_all(site: Site) -> None:
    shutil.rmtree(site.hosts)
    ran = site.ops("deploy", "--host", "node1")
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_host_file_of_another_model_is_checked_before_anything_else(site: Site, clean: Twin) -> None:
    def fewer(host: dict[str, Any]) -> None:
        host["gpus"]["count"] = 2

    site.edit("node1", fewer)
    with untouched(clean):
        ran = site.ops("deploy", "--host", "node1")
    assert ran.code == 2
    assert "gpus" in ran.err
