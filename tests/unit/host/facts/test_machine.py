"""Each parser on text that a host really gave, and readings that survive whatever a host prints in between.

data/facts holds the output of the fact script on twins: node1 and node2 with nothing of ours, and node1 deployed. Units
and mounts are cut to a few; the kernel's name and paths outside a host are replaced.
"""

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.machine import ListeningPort, Program, programs_snippet
from lodger.host.ownership import Owner, owner
from tests.unit.readings import captured


def test_machine() -> None:
    machine = captured("node1")[facts.MACHINE]
    assert (len(machine.machine_id), len(machine.boot_id)) == (32, 36)
    assert (machine.hostname, machine.kernel, machine.systemd) == ("node1", "6.1.0-28-amd64", 252)
    assert machine.uptime > 0
    assert machine.clock > 1.7e9


def test_docker() -> None:
    assert captured("node1")[facts.DOCKER] == facts.Docker(True, "20.10.24+dfsg1", "2.26.1-4", True, "/var/lib/docker")
    silent = Facts({"docker": (0, "client=yes\nserver=\nroot=\ncompose=\nhook=no\n")})
    assert silent[facts.DOCKER] == facts.Docker(True, "", "", False, "/var/lib/docker")


def test_containers() -> None:
    found = captured("node1")[facts.CONTAINERS]
    assert set(found) == {"qwen38-fp8-sglang", "colleague-notebook", "colleague-migration"}
    notebook = found["colleague-notebook"]
    assert (notebook.running, notebook.restart_policy, notebook.published) == (True, "always", (8888,))
    assert notebook.address.startswith("172.17.0.")
    assert found["colleague-migration"].status == "exited"
    assert found["colleague-migration"].address == ""
    worker = captured("deployed")[facts.CONTAINERS]["lodger-worker-a"]
    assert worker.labels["io.lodger.host"] == "node1"
    assert worker.published == (30000,)


@pytest.mark.parametrize(("dockerd", "hook"), [("{unit}", True), ("{stranger}", False), ("0", False), ("", False)])
def test_docker_is_who_its_unit_runs_and_not_who_is_called_so(dockerd: str, hook: bool, tmp_path: Path) -> None:
    """What a container is given is looked for where Docker itself looks: in the folders of its own PATH."""
    tools, programs = tmp_path / "tools", tmp_path / "bin"
    for folder in (tools, programs):
        folder.mkdir()
    (tools / "nvidia-container-toolkit").write_text("#!/bin/sh\n")
    unit = subprocess.Popen(["sleep", "60"], executable="/bin/sleep", env={"PATH": str(tools)})
    stranger = subprocess.Popen(["dockerd", "60"], executable="/bin/sleep", env={"PATH": "/nowhere"})
    said = dockerd.format(unit=unit.pid, stranger=stranger.pid)
    for name, body in {"docker": "exit 1", "systemctl": f"echo {said}", "pidof": f"echo {stranger.pid}"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
    for path in (*tools.iterdir(), *programs.iterdir()):
        path.chmod(0o755)
    try:
        environment = {"PATH": f"{programs}:/usr/bin:/bin"}
        script = facts.script([facts.DOCKER])
        text = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=True, timeout=20, env=environment
        ).stdout
        assert facts.parse(text)[facts.DOCKER].gpu_hook == hook
    finally:
        for one in (unit, stranger):
            one.kill()
            one.wait()


def test_container_on_the_hosts_network_is_asked_at_the_loopback() -> None:
    line = json.dumps(
        [
            "a" * 64,
            "/x",
            "i",
            "running",
            {"Name": "no", "MaximumRetryCount": 0},
            0,
            "t",
            5,
            None,
            {"host": {"IPAddress": ""}},
            "host",
            None,
        ]
    )
    found = Facts({"containers": (0, f"WARNING: something\n{line}\n")})[facts.CONTAINERS]["x"]
    assert (found.address, found.labels, found.published) == ("127.0.0.1", {}, ())


def test_container_with_two_networks_and_a_port_bound_twice() -> None:
    networks = {"none": {"IPAddress": ""}, "app": {"IPAddress": "172.19.0.2"}}
    ports = {"80/tcp": [{"HostPort": "8080"}, {"HostPort": "8080"}], "90/tcp": None}
    line = json.dumps(
        ["a" * 64, "/x", "i", "running", {"Name": "no", "MaximumRetryCount": 0}, 0, "t", 5, {}, networks, "bridge", ports]
    )
    found = Facts({"containers": (0, line)})[facts.CONTAINERS]["x"]
    assert (found.address, found.published) == ("172.19.0.2", (8080,))


def test_label_with_a_character_that_ends_a_line_elsewhere() -> None:
    line = json.dumps(
        [
            "a" * 64,
            "/x",
            "i",
            "running",
            {"Name": "no", "MaximumRetryCount": 0},
            0,
            "t",
            5,
            {"k": "a\u0085b\u2028c"},
            {},
            "bridge",
            {},
        ],
        ensure_ascii=False,
    )
    assert Facts({"containers": (0, line)})[facts.CONTAINERS]["x"].labels["k"] == "a\u0085b\u2028c"


def test_units() -> None:
    found = captured("node2")[facts.UNITS]
    vllm = found["vllm-qwen.service"]
    assert (vllm.active, vllm.sub, vllm.file_state, vllm.type) == ("active", "running", "enabled", "simple")
    assert vllm.fragment == "/etc/systemd/system/vllm-qwen.service"
    assert vllm.main_pid > 0
    assert not vllm.timer_driven
    assert found["systemd-modules-load.service"].sub == "exited"
    assert found["docker.socket"].active == "active"


def test_unit_that_a_timer_starts() -> None:
    text = "Id=backup.service\nActiveState=activating\nTriggeredBy=other.socket backup.timer\nMainPID=\nNRestarts=\n"
    assert Facts({"units": (0, text)})[facts.UNITS]["backup.service"].timer_driven


def test_one_unit_there_and_not_there() -> None:
    fresh, after = captured("node1"), captured("deployed")
    fact = facts.unit_fact("lodger-worker-a.service")
    assert fresh[fact] is None
    found = after[fact]
    assert found is not None
    assert (found.active, found.file_state, found.restarts, found.type) == ("active", "enabled", 0, "exec")


def test_programs() -> None:
    found = captured("node1")[facts.PROGRAMS]
    assert found["aigc-creator"].state == "RUNNING"
    assert found["aigc-creator"].pid > 0
    assert captured("node2")[facts.PROGRAMS] == {}


def test_programs_in_groups_and_in_every_state() -> None:
    text = (
        "web:api                          RUNNING   pid 12, uptime 3 days, 0:00:24\n"
        "web:jobs                         STOPPED   Not started\n"
        "old                              EXITED    Nov 29 01:57 PM\n"
        "bad                              FATAL     Exited too quickly (process log may have details)\n"
        "slow                             BACKOFF   Exited too quickly\n"
        "error: <class 'OSError'>, no such file\n"
    )
    found = Facts({"programs": (0, text)})[facts.PROGRAMS]
    assert found["web:api"] == Program("web:api", "RUNNING", 12)
    assert {name: one.state for name, one in found.items() if not one.pid} == {
        "web:jobs": "STOPPED",
        "old": "EXITED",
        "bad": "FATAL",
        "slow": "BACKOFF",
    }


def test_ports() -> None:
    found = {(one.protocol, one.address, one.port): one for one in captured("node2")[facts.PORTS]}
    assert found["tcp", "0.0.0.0", 30000].process == "service.py"  # noqa: S104  a reading, nothing is bound
    assert found["tcp", "0.0.0.0", 8888].process == "docker-proxy"  # noqa: S104  a reading, nothing is bound
    assert found["tcp", "[::]", 22].process == "sshd"
    assert [one.pid for one in found.values() if one.address == "127.0.0.11"] == [0, 0]


def test_port_on_one_interface_and_with_several_owners() -> None:
    text = (
        'udp UNCONN 0 0 127.0.0.53%lo:53 0.0.0.0:* users:(("systemd-resolve",pid=9,fd=13))\n'
        'tcp LISTEN 0 511 *:80 *:* users:(("nginx",pid=20,fd=6),("nginx",pid=21,fd=6))\n\n'
    )
    assert Facts({"ports": (0, text)})[facts.PORTS] == (
        ListeningPort("udp", "127.0.0.53%lo", 53, "systemd-resolve", 9),
        ListeningPort("tcp", "*", 80, "nginx", 20),
    )


def test_processes_lead_to_their_owners() -> None:
    found = captured("deployed")[facts.PROCESSES]
    engine = next(one for one in found.values() if "launch_server" in one.command)
    assert engine.container == captured("deployed")[facts.CONTAINERS]["lodger-worker-a"].id
    assert engine.gpus == (0, 1, 2, 3)
    creator = next(one for one in found.values() if "aigc-creator" in one.command)
    assert (creator.unit, creator.container, len(creator.parents)) == ("supervisor.service", "", 1)
    metrics = next(one for one in found.values() if "--name metrics" in one.command)
    assert (metrics.user, metrics.gpus, metrics.unit) == ("colleague", (), "colleague-metrics.service")


def test_process_whose_command_looks_like_the_next_reading() -> None:
    text = (
        "@pid 7\nmallory\n 6 5\n/user.slice/x.scope \n/dev/nvidia0 /dev/nvidiactl \nsh -c @pid 8 root @pid x \n"
        "@pid 9\nbob\n\n/ \n\nls \n"
    )
    found = Facts({"processes": (0, text)})[facts.PROCESSES]
    assert set(found) == {7, 9}
    assert found[7].command == "sh -c @pid 8 root @pid x"
    assert found[7].devices == ("/dev/nvidia0", "/dev/nvidiactl")
    assert (found[7].gpus, found[7].parents) == ((0,), (6, 5))


def test_processes_are_read_as_they_are_whatever_their_arguments(tmp_path: Path) -> None:
    """With a stand-in for ss, which says that three processes of this test listen, and one that has ended."""
    odd = ["", "a  b\nc", "@pid 1", "/proc/1/cmdline", "実験 %s \\n", "", ""]
    running = [subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sh", "-c", "read -r _; :", *odd], stdin=subprocess.PIPE)]
    gone = subprocess.Popen(["true"])
    gone.wait()
    pids = [os.getpid(), gone.pid, *(one.pid for one in running)]
    (tmp_path / "ss").write_text("#!/bin/sh\n" + "".join(f"echo 'tcp LISTEN users:((\"x\",pid={pid},fd=3))'\n" for pid in pids))
    (tmp_path / "ss").chmod(0o755)
    try:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", facts.script([facts.PROCESSES])], capture_output=True, check=True, timeout=60, env=environment
        )
    finally:
        for one in running:
            one.kill()
            one.wait()
    found = facts.parse(done.stdout.decode())[facts.PROCESSES]
    assert gone.pid not in found
    sleeping, reading = (found[one.pid] for one in running)
    assert sleeping.command == "sleep 60"
    assert reading.command == " ".join(["sh", "-c", "read -r _; :", *odd]).replace("\n", " ").strip()
    assert sleeping.parents == (os.getpid(), *found[os.getpid()].parents)
    assert {sleeping.user, reading.user} == {pwd.getpwuid(os.getuid()).pw_name}
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    assert sleeping.cgroup.split() == [line.split(":", 2)[2] for line in groups]
    assert sleeping.devices == ()


def test_a_program_is_known_by_its_executable_and_not_by_its_words(tmp_path: Path) -> None:
    real, other = tmp_path / "daemon", tmp_path / "else/daemon"
    other.parent.mkdir()
    for path in (real, other):
        shutil.copy("/bin/sleep", path)
    started = [subprocess.Popen([path, "60"], executable=path) for path in (real, other)]
    started.append(subprocess.Popen([str(real), "61"], executable="/bin/sleep"))
    try:
        snippet = programs_snippet((str(real),))
        said = subprocess.run(["sh", "-c", snippet], capture_output=True, text=True, check=True, timeout=20).stdout
        assert said == f"@program {started[0].pid} {os.getuid()} {real}\n"
        real.unlink()  # an upgrade puts another file there
        assert subprocess.run(["sh", "-c", snippet], capture_output=True, text=True, check=True, timeout=20).stdout == said
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_what_nobody_asked_of_a_process_is_not_known() -> None:
    block = "@pid 7\nroot\n\n/ \n/dev/nvidia0 \nx \n"

    def read(head: str) -> tuple[str | None, bool]:
        found = Facts({"processes": (0, f"{head}{block}")})[facts.PROCESSES][7]
        return found.program, found.by_root

    assert read("") == (None, False), "a ledger of an earlier version"
    assert read("@programs\n") == ("", False)
    assert read("@programs\n@program 8 0 /usr/bin/a\nsh: an error\n") == ("", False)
    assert read("@programs\n@program 7 0 /usr/bin/a\n") == ("/usr/bin/a", True)
    assert read("@programs\n@program 7 1000 /usr/bin/a\n@program 9  /usr/bin/b\n") == ("/usr/bin/a", False)


def test_a_process_below_a_users_manager_is_that_users_whoever_its_folder_in_proc_seems_to_be() -> None:
    """A process that gives up being looked at (prctl, a set-uid program) belongs to root there."""
    block = "@pid 7\nroot\n\n/user.slice/user-1000.slice/user@1000.service/app.slice/x.service \n/dev/nvidia0 \nx \n"
    read = {"processes": (0, f"@programs\n@user 1000 alice\n@user 1001 bob\n{block}@pid 8\nroot\n\n/ \n\ny \n")}
    found = Facts(read)[facts.PROCESSES]
    assert (found[7].user, found[8].user) == ("alice", "root")
    assert owner(found[7], {}, {}, {}) == Owner("user-unit", "alice:x.service")
    before = Facts({"processes": (0, block)})[facts.PROCESSES]
    assert before[7].user == "root", "a ledger of an earlier version does not say"


@pytest.mark.parametrize(
    ("cgroup", "container", "unit"),
    [
        (f"/system.slice/docker-{'a' * 64}.scope ", "a" * 64, ""),
        (f"/docker/{'b' * 64} ", "b" * 64, ""),
        ("/system.slice/vllm-qwen.service ", "", "vllm-qwen.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service ", "", "user@1000.service"),
        ("/user.slice/user-1000.slice/session-3.scope ", "", ""),
        ("/ / /system.slice/x.service ", "", "x.service"),
        ("/x.service ", "", "x.service"),
        ("/system.slice/system-x.slice/x@1.service/part ", "", "x@1.service"),
        (f"/docker/{'b' * 64}/system.slice/x.service ", "b" * 64, ""),
        ("/machine.slice/a.scope/system.slice/x.service ", "", ""),
        ("", "", ""),
    ],
)
def test_cgroups_of_both_versions_and_drivers(cgroup: str, container: str, unit: str) -> None:
    found = facts.Process(1, "root", "x", cgroup, (), ())
    assert (found.container, found.unit) == (container, unit)


def test_mounts() -> None:
    found = captured("node1")[facts.MOUNTS]
    assert found["/data/gluster"] == "tmpfs gluster1:/lab"
    assert found["/"] == "overlay overlay"


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        (r"36 35 98:0 / /data/my\040disk\134x rw - ext4 /dev/sdb1 rw", "/data/my disk\\x", "ext4 /dev/sdb1"),
        (
            "36 35 98:0 / /data/实验\u3000室 rw,noatime shared:1 - fuse.glusterfs g1:/lab rw",
            "/data/实验\u3000室",
            "fuse.glusterfs g1:/lab",
        ),
        ("36 35 98:0 / /m ro,relatime - ext4 /dev/sdc rw", "/m", "ext4 /dev/sdc ro"),
        ("36 35 98:0 / /m rw,relatime - ext4 /dev/sdc ro,errors=remount-ro", "/m", "ext4 /dev/sdc ro"),
    ],
)
def test_mounts_with_odd_names_and_read_only_ones(line: str, where: str, what: str) -> None:
    assert Facts({"mounts": (0, line + "\n")})[facts.MOUNTS] == {where: what}


def test_disk_of_a_folder_that_is_not_there_is_that_of_its_parent(tmp_path: Path) -> None:
    there, absent = facts.disk_fact(str(tmp_path)), facts.disk_fact(f"{tmp_path}/not/yet $there")
    done = subprocess.run(["sh", "-c", facts.script([there, absent])], capture_output=True, text=True, check=True, timeout=20)
    read = facts.parse(done.stdout)
    assert read[there].writable
    # Other processes write to the same disk between the two looks.
    assert abs(read[there].free - read[absent].free) < 2**30
    assert abs(read[there].free - os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize) < 2**30
