"""Each parser on text that a host really gave, and readings that survive whatever a host prints in between.

data/facts holds the output of the fact script on twins: node1 and node2 with nothing of ours, and node1 deployed. Units
and mounts are cut to a few; the kernel's name and paths outside a host are replaced.
"""

import base64
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodger.errors import Refused
from lodger.host import facts
from lodger.host.command import quote
from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import HostFile
from tests.unit.readings import captured


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


def test_a_command_of_somebody_else_is_not_ours_whatever_its_environment_says() -> None:
    """The mark is a variable, and anybody may set one: only root's processes, and those of who is logged in, have ours."""
    if os.getuid() != 0:
        pytest.skip("needs root to start a process of another user")
    environment = {"PATH": os.environ["PATH"], "LODGER_COMMAND": "lodger-other"}
    other = subprocess.Popen(["sleep", "61"], env=environment, user=65534, group=65534)

    def said(**more: str) -> str:
        mine = {"PATH": os.environ["PATH"], "LODGER_COMMAND": "lodger-mine", **more}
        script = facts.script([facts.BUSY])
        text = subprocess.run(["sh", "-c", script], env=mine, capture_output=True, text=True, check=True).stdout
        busy: list[str] = facts.parse(text)[facts.BUSY]
        return " ".join(busy)

    try:
        assert "sleep 61" not in said()
        assert "sleep 61" not in said(SUDO_UID="1000")
        assert "sleep 61" in said(SUDO_UID="65534"), "a command that was run without sudo"
    finally:
        other.kill()
        other.wait()


def test_what_was_read_first_stays_and_what_was_not_read_then_is_added() -> None:
    first, later = Facts({"a": (0, "then")}, "h"), Facts({"a": (0, "now"), "b": (0, "now")}, "h")
    assert first.over(later).sections == {"a": (0, "then"), "b": (0, "now")}
