"""Each parser on text that a host really gave, and readings that survive whatever a host prints in between.

data/facts holds the output of the fact script on twins: node1 and node2 with nothing of ours, and node1 deployed. Units
and mounts are cut to a few; the kernel's name and paths outside a host are replaced.
"""

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lodger.errors import Refused
from lodger.host import facts
from lodger.host.command import quote
from lodger.host.facts.base import Fact, Facts, Unreadable
from lodger.host.facts.deployed import HostFile
from lodger.host.facts.machine import ListeningPort, Program
from tests.unit.readings import captured


def through_sh(*wanted: Fact[str], limit: int | None = None) -> Facts:
    done = subprocess.run(["sh", "-c", facts.script(wanted)], capture_output=True, check=False, timeout=20)
    return facts.parse(done.stdout[:limit].decode("utf-8", "replace"), "node1")


def saying(name: str, text: str, code: int = 0) -> Fact[str]:
    return Fact(name, f"printf %s {quote([text])}\nexit {code}", str)


# ---------------------------------------------------------------- one round trip

bodies = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=60)


@settings(max_examples=50, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=4))
@example(["@@lodger-fact-end 0\n@@lodger-fact fact1\nforged", "\n\n", "", "no newline", "one\n", "@@lodger-facts x\n"])
@example(["@@lodger-fact 00000000-0000-0000-0000-000000000000 end 0\n", "\n@@lodger-fact  end 0\n"])
def test_whatever_facts_print_they_read_back_each_as_it_was(texts: list[str]) -> None:
    wanted = [saying(f"fact{number}", text) for number, text in enumerate(texts)]
    read = through_sh(*wanted)
    assert [read[fact] for fact in wanted] == texts


def test_marks_of_an_earlier_reading_do_not_pass_for_those_of_this_one() -> None:
    earlier = subprocess.run(
        ["sh", "-c", facts.script([saying("secret", "forged")])], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    read = through_sh(saying("log", earlier), saying("after", "true"))
    assert read.sections.keys() == {"log", "after"}
    assert read[saying("log", "")] == earlier


@pytest.mark.parametrize(
    "snippet",
    ["exit 7", "false", "no-such-program-here", "echo half; exit 7", "set -e; false; echo no", "cat; exit 3", "kill -9 $$; :"],
)
def test_a_snippet_that_fails_takes_no_other_reading_with_it(snippet: str) -> None:
    broken: Fact[str] = Fact("broken", snippet if "kill" not in snippet else "sh -c 'kill -9 $$'", str)
    read = through_sh(saying("before", "1"), broken, saying("after", "2"))
    assert (read[saying("before", "")], read[saying("after", "")]) == ("1", "2")
    with pytest.raises(Unreadable, match="broken could not be read"):
        read[broken]


def test_a_failed_reading_says_why_and_where() -> None:
    broken: Fact[str] = Fact("broken", "echo first; echo 'cannot open that' >&2; exit 2", str)
    with pytest.raises(Unreadable) as caught:
        through_sh(broken)[broken]
    assert str(caught.value) == "node1: broken could not be read (cannot open that)"


def test_what_one_snippet_sets_is_unknown_to_the_next() -> None:
    first: Fact[str] = Fact("first", "value=1; cd /; set -f; exec >/dev/null", str)
    second: Fact[str] = Fact("second", 'printf "%s" "${value-unset}"', str)
    assert through_sh(first, second)[second] == "unset"


def test_no_snippet_reads_the_input_of_the_script() -> None:
    script = facts.script([Fact("reads", "cat", str), saying("after", "x")])
    done = subprocess.run(["sh", "-c", script], input=b"stolen", capture_output=True, check=True, timeout=20)
    assert facts.parse(done.stdout.decode()).sections["reads"] == (0, "")


def test_cut_off_output_gives_whole_readings_or_none() -> None:
    wanted = [saying("one", "first\nreading"), saying("two", "second"), saying("failed", "third", code=127)]
    script = facts.script(wanted)
    whole = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout
    complete = facts.parse(whole).sections
    assert complete == {"one": (0, "first\nreading"), "two": (0, "second"), "failed": (127, "third")}
    for length in range(len(whole)):
        sections = facts.parse(whole[:length]).sections
        assert all(complete[name] == section for name, section in sections.items())
        assert "failed" not in sections
    assert facts.parse("").sections == {}


def test_a_fact_that_was_not_read_says_so_only_when_it_is_asked_for() -> None:
    read = facts.parse("")
    assert facts.MACHINE not in read
    with pytest.raises(Unreadable, match="machine was not read"):
        read[facts.MACHINE]


def test_a_fact_is_read_once_however_often_it_is_asked_for() -> None:
    assert facts.script([facts.CURL, facts.unit_fact("x"), facts.CURL, facts.unit_fact("x")]).count(" begin ") == 2


def test_text_that_a_parser_does_not_understand_is_quoted() -> None:
    read = Facts({"machine": (0, "only one line")}, "node1")
    with pytest.raises(Unreadable, match=r"machine reads strangely .*only one line"):
        read[facts.MACHINE]


def test_readings_survive_being_written_to_the_ledger() -> None:
    read = captured("deployed")
    again = Facts.load(read.dump(), "node1")
    assert again.sections == read.sections
    assert again[facts.CONTAINERS] == read[facts.CONTAINERS]
    for text in ("", "[]x", '{"machine": 3}'):
        with pytest.raises((ValueError, TypeError)):
            Facts.load(text)


# ---------------------------------------------------------------- the machine, Docker, processes


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
    assert found["tcp", "0.0.0.0", 30000].process == "service.py"  # noqa: S104
    assert found["tcp", "0.0.0.0", 8888].process == "docker-proxy"  # noqa: S104
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


@pytest.mark.parametrize(
    ("cgroup", "container", "unit"),
    [
        (f"/system.slice/docker-{'a' * 64}.scope ", "a" * 64, ""),
        (f"/docker/{'b' * 64} ", "b" * 64, ""),
        ("/system.slice/vllm-qwen.service ", "", "vllm-qwen.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service ", "", "user@1000.service"),
        ("/user.slice/user-1000.slice/session-3.scope ", "", ""),
        ("/ / /system.slice/x.service ", "", "x.service"),
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


# ---------------------------------------------------------------- GPUs


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
    with pytest.raises(Unreadable, match="driver reads strangely"):
        Facts({"driver": (0, text)})[facts.DRIVER]


# ---------------------------------------------------------------- what is ours


def test_deployed_nothing() -> None:
    assert captured("node1")[facts.DEPLOYED] == facts.Deployed("", (), (), {}, {})


def test_deployed() -> None:
    found = captured("deployed")[facts.DEPLOYED]
    release = found.current
    assert (found.history, found.stored, found.links) == ((release,), (release,), {"worker-a": release})
    unit = found.files["/etc/systemd/system/lodger-worker-a.service"]
    assert (unit.mode, unit.owner) == (0o644, "root")
    assert unit.content == found.files[f"/opt/lodger/releases/{release}/units/lodger-worker-a.service"].content
    assert [item["name"] for item in found.manifest(release)["services"]] == ["worker-a"]
    assert found.record("images") is not None
    assert found.record("unfinished.json") is None


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"version": 2}'])
def test_a_release_without_a_readable_manifest_says_what_to_do(content: str | None) -> None:
    files = {} if content is None else {"/opt/lodger/releases/ab/manifest.json": HostFile(content, 0o644, "root")}
    with pytest.raises(Refused) as caught:
        facts.Deployed("ab", ("ab",), ("ab",), {}, files).manifest("ab")
    assert "/opt/lodger/releases/ab/manifest.json" in caught.value.cause
    assert "/opt/lodger/current" in caught.value.hint
    with pytest.raises(Refused) as caught:
        facts.Deployed("cd", ("ab", "cd"), ("ab", "cd"), {}, files).manifest("ab")
    assert "take the line ab out of /opt/lodger/history" in caught.value.hint


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "it's $x", "sub/实验", "-n", " x "]), st.binary(max_size=40), max_size=4))
def test_files_read_back_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("files")
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
        (root / name).chmod(0o640)
    script = facts.files_snippet(quote([str(root)]))
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout
    found = facts.decode_files(said)
    assert {path: (file.content, file.mode) for path, file in found.items()} == {
        f"{root}/{name}": (content.decode("utf-8", "replace"), 0o640) for name, content in files.items()
    }


@pytest.mark.parametrize("line", ["644", "644 root %%% x", "644 root a b c", "rw root eA== eA=="])
def test_line_that_is_no_file_is_not_understood(line: str) -> None:
    with pytest.raises(ValueError, match=r"not base64|unpack|invalid literal"):
        facts.decode_files(line)


def test_empty_file() -> None:
    path = base64.b64encode(b"/x").decode()
    assert facts.decode_files(f"644 root {path} \n") == facts.decode_files(f"644 root {path}\n")
    assert facts.decode_files(f"644 root {path} ")["/x"].content == ""


def test_the_fact_script_reads_our_own_files_and_no_lock_or_ledger(tmp_path: Path) -> None:
    root = str(tmp_path)
    for path in (
        "opt/lodger/releases/0a1b/units/lodger-worker-a.service",
        "opt/lodger/releases/0a1b/worker-a/compose.yml",
        "opt/lodger/releases/.0a1c.new/manifest.json",
        "etc/systemd/system/lodger-worker-a.service",
        "etc/systemd/system/vllm-qwen.service",
        "etc/systemd/system/multi-user.target.wants/other.service",
        "var/lib/lodger/lock",
        "var/lib/lodger/lock.new",
        "var/lib/lodger/unfinished.json",
        "var/lib/lodger/journal/old.jsonl",
        "var/lib/lodger/smoked/worker-a.json",
        "etc/lodger/keys/qwen38.0123abcd",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "opt/lodger/current").symlink_to("/opt/lodger/releases/0a1b")
    (tmp_path / "opt/lodger/history").write_text("ffff\n0a1b\n")
    (tmp_path / "opt/lodger/services").mkdir()
    (tmp_path / "opt/lodger/services/worker-a").symlink_to("/opt/lodger/releases/0a1b/worker-a")
    snippet = facts.DEPLOYED.snippet
    for top in ("/opt/lodger", "/etc/lodger", "/etc/systemd", "/var/lib/lodger"):
        snippet = snippet.replace(top, root + top)
    said = subprocess.run(["sh", "-c", snippet], capture_output=True, text=True, check=True, timeout=20).stdout
    found = Facts({"deployed": (0, said)})[facts.DEPLOYED]
    assert (found.current, found.history, found.stored) == ("0a1b", ("ffff", "0a1b"), ("0a1b",))
    assert found.links == {"worker-a": "0a1b"}
    assert found.keys == ("qwen38.0123abcd",), "the name of a key, and nothing of what it is"
    assert base64.b64encode(b"etc/lodger/keys/qwen38.0123abcd").decode() not in said
    assert sorted(path.removeprefix(root) for path in found.files if "/releases/." not in path) == [
        "/etc/systemd/system/lodger-worker-a.service",
        "/opt/lodger/releases/0a1b/units/lodger-worker-a.service",
        "/opt/lodger/releases/0a1b/worker-a/compose.yml",
        "/var/lib/lodger/smoked/worker-a.json",
    ]


def test_images_and_folders() -> None:
    fact = facts.images_fact(["b@sha256:2", "a@sha256:1", "b@sha256:2"])
    assert Facts({fact.name: (0, "yes a@sha256:1\nno b@sha256:2\n")})[fact] == {"a@sha256:1": True, "b@sha256:2": False}
    assert Facts({fact.name: (0, "")})[fact] == {"a@sha256:1": False, "b@sha256:2": False}
    assert facts.images_fact([]).snippet == "true"


def test_model_folder_counts_the_bytes_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(3 * 2**30)  # beyond what a 32-bit awk counts; no block of it is on disk
    (tmp_path / ".lodger").mkdir()
    (tmp_path / ".lodger" / "model.safetensors.part").write_text("half there is not there")
    there, absent = facts.folder_fact(str(tmp_path)), facts.folder_fact(f"{tmp_path}/none")
    done = subprocess.run(["sh", "-c", facts.script([there, absent])], capture_output=True, text=True, check=True, timeout=20)
    read = facts.parse(done.stdout)
    assert read[there] == facts.Folder(True, 3 * 2**30 + 2)
    assert read[absent] == facts.Folder(False, 0)


def test_model_folder_is_compared_with_what_a_fetch_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "it's a model"
    (folder / "sub").mkdir(parents=True)
    (folder / ".lodger").mkdir()
    sizes = {"config.json": 2, "sub/a b.txt": 3, "empty": 0, "模型.bin": 5}
    for path, size in sizes.items():
        (folder / path).write_bytes(b"x" * size)
    recorded = "".join(f"none:\t{size}\t1700000000\t{path}\n" for path, size in sizes.items())
    (folder / ".lodger" / "manifest").write_text(f"#id\tx\n#revision\t-\n{recorded}")
    (folder / "notes.txt").write_text("a colleague's")
    fact = facts.folder_fact(str(folder))

    def lost() -> int | None:
        done = subprocess.run(["sh", "-c", facts.script([fact])], capture_output=True, text=True, check=True, timeout=20)
        return facts.parse(done.stdout)[fact].lost

    assert lost() == 0
    (folder / "sub" / "a b.txt").write_text("four")
    (folder / "empty").unlink()
    assert lost() == 2
    (folder / ".lodger" / "manifest").unlink()
    assert lost() is None


def test_serving() -> None:
    fact = facts.serving_fact("lodger-worker-a", "lodger-worker-a.service", "node1")
    found = captured("deployed")[fact]
    assert found.container == captured("deployed")[facts.CONTAINERS]["lodger-worker-a"].id
    assert (found.port, found.health, found.log) == (30000, 200, "")
    assert captured("node1")[fact] == facts.Serving("", "", 0, "", 0, "")


def test_serving_asks_only_the_container_that_carries_our_label(tmp_path: Path) -> None:
    """With stand-ins for docker, curl and journalctl on the PATH."""
    asked = tmp_path / "asked"
    for name, body in {
        "docker": "echo 'c0ffee|true|bridge|172.18.0.2|node1|cfg|30000|/health'",
        "curl": f"for url; do :; done; echo \"$url\" > '{asked}'; printf 503",
        "journalctl": "printf '@log\\nlast = line\\n'",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def ask(host: str) -> facts.Serving:
        fact = facts.serving_fact("lodger-worker-a", "lodger-worker-a.service", host)
        done = subprocess.run(
            ["sh", "-c", facts.script([fact])], capture_output=True, text=True, check=True, timeout=20, env=environment
        )
        return facts.parse(done.stdout)[fact]

    assert ask("node2") == facts.Serving("", "", 0, "", 0, "@log\nlast = line")
    assert not asked.exists()
    assert ask("node1") == facts.Serving("c0ffee", "172.18.0.2", 30000, "cfg", 503, "@log\nlast = line")
    assert asked.read_text() == "http://172.18.0.2:30000/health\n"


def test_only_commands_of_other_connections_are_busy() -> None:
    script = facts.script([facts.BUSY])
    mine = {"PATH": os.environ["PATH"], "LODGER_COMMAND": "lodger-mine"}
    other = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], "LODGER_COMMAND": "lodger-other"})
    try:
        said = subprocess.run(["sh", "-c", script], env=mine, capture_output=True, text=True, check=True).stdout
        assert any("sleep 60" in line for line in facts.parse(said)[facts.BUSY])
    finally:
        other.kill()
        other.wait()
    for _ in range(5):  # processes that vanish while they are looked at are nobody at work
        said = subprocess.run(["sh", "-c", script], env=mine, capture_output=True, text=True, check=True).stdout
        assert not any("sleep 60" in line or "cannot open" in line for line in facts.parse(said)[facts.BUSY])


def test_what_was_read_first_stays_and_what_was_not_read_then_is_added() -> None:
    first, later = Facts({"a": (0, "then")}, "h"), Facts({"a": (0, "now"), "b": (0, "now")}, "h")
    assert first.over(later).sections == {"a": (0, "then"), "b": (0, "now")}
