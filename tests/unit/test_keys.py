"""A pool's key: where it may come from, and that it stands nowhere but in its file."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodger import facts, keys
from lodger.command import Command, Secret
from lodger.errors import InventoryError
from lodger.inventory import Fleet, load
from lodger.keys import ApiKey
from lodger.render import render
from lodger.states.base import NoUndo
from lodger.states.key import KeyInPlace
from templates import starter

ROOT = Path(__file__).parents[2]
KEY = "k3y-" + "0123456789abcdef" * 2


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """The site's own fleet, pinned, whose pool asks for a key."""
    fleet = load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    pool = fleet.pools["qwen38"].model_copy(update={"api_key_file": "pool.key"})
    (tmp_path / "pool.key").write_text(KEY + "\n")
    (tmp_path / "pool.key").chmod(0o600)
    return fleet.model_copy(update={"images": images, "pools": {"qwen38": pool}, "folder": tmp_path})


def test_a_pool_without_a_file_asks_for_no_key() -> None:
    assert keys.of(load(ROOT / "hosts"), "qwen38") is None


def test_the_key_is_what_the_file_holds(fleet: Fleet) -> None:
    found = keys.of(fleet, "qwen38")
    assert found is not None
    assert found.secret.reveal() == KEY
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    "text", ["", "short", "with blanks " * 3, "two\nlines" * 5, "k" * 201, 'quote"' * 5, "$(id)" * 5, "\xe9" * 30]
)
def test_what_would_be_written_differently_elsewhere_is_no_key(fleet: Fleet, text: str) -> None:
    (fleet.folder / "pool.key").write_text(text)
    with pytest.raises(InventoryError, match="does not hold a key"):
        keys.of(fleet, "qwen38")


def test_a_key_that_others_can_read_is_refused(fleet: Fleet) -> None:
    (fleet.folder / "pool.key").chmod(0o640)
    with pytest.raises(InventoryError, match="others can read"):
        keys.of(fleet, "qwen38")


def test_a_missing_file_says_how_to_make_one(fleet: Fleet) -> None:
    (fleet.folder / "pool.key").unlink()
    with pytest.raises(InventoryError, match="cannot be read") as caught:
        keys.of(fleet, "qwen38")
    assert "openssl rand" in caught.value.hint


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_no_file_of_a_release_holds_the_key(fleet: Fleet, host: str) -> None:
    release = render(fleet, fleet.hosts[host])
    assert all(KEY not in file.content for file in release.files)
    assert all("starter.py" in file.content for file in release.files if file.path.endswith("compose.yml"))


def test_another_key_is_another_configuration(fleet: Fleet) -> None:
    before = [service.config_hash for service in render(fleet, fleet.hosts["node2"]).services]
    (fleet.folder / "pool.key").write_text("another-" + KEY)
    after = [service.config_hash for service in render(fleet, fleet.hosts["node2"]).services]
    assert len(before) == 3
    assert all(one != other for one, other in zip(before, after, strict=True))


STATE = KeyInPlace(ApiKey("qwen38", Secret(KEY)))


def read_from(path: Path) -> facts.Facts:
    """Read the state's fact with a real shell, from a file instead of the host's."""
    (fact,) = STATE.facts
    snippet = fact.snippet.replace("/etc/lodger/keys/qwen38", str(path))
    done = subprocess.run(["sh", "-c", snippet], capture_output=True, text=True, check=True)
    # On a host the file is root's; here it is that of whoever runs the tests.
    text = done.stdout.rstrip("\n").replace(getpass.getuser(), "root")
    return facts.Facts({fact.name: (0, text)})


@pytest.mark.parametrize(
    ("key", "mode", "missing"),
    [
        (None, 0, "the host has no key"),
        ("another-" + KEY, 0o600, "another key"),
        (KEY, 0o644, "can be read by others"),
        (KEY, 0o600, ""),
    ],
)
def test_the_file_on_the_host_is_judged_by_content_and_access(tmp_path: Path, key: str | None, mode: int, missing: str) -> None:
    path = tmp_path / "qwen38"
    if key is not None:
        path.write_text(ApiKey("qwen38", Secret(key)).header.reveal())
        path.chmod(mode)
    found = STATE.missing(read_from(path))
    assert (missing in found) if missing else found == ""


def test_the_key_travels_by_standard_input(tmp_path: Path) -> None:
    (command,) = STATE.act(read_from(tmp_path / "none"))
    assert KEY not in command.script
    assert KEY not in str(command)
    assert command.input_bytes() == f"Authorization: Bearer {KEY}\n".encode()


def test_an_undo_puts_back_the_key_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "qwen38"
    path.write_text(ApiKey("qwen38", Secret("earlier-" + KEY)).header.reveal())
    path.chmod(0o600)
    before = read_from(path)
    written = STATE.act(before)[0]

    def here(command: Command) -> None:
        script = command.script.replace("/etc/lodger/keys", str(tmp_path))
        subprocess.run(["sh", "-c", script], input=written.input_bytes(), check=True)

    here(written)
    now = read_from(path)
    assert STATE.missing(now) == ""
    undo = STATE.undo(before, now)
    assert not isinstance(undo, NoUndo)
    for command in undo:
        here(command)
    assert STATE.undone(before, read_from(path)) == ""


# ---------------------------------------------------------------- the starter


@given(st.lists(st.sampled_from([b"x", b"sesa", b"me", b"sesame", b"s", b"\n", b"esame"])))
def test_no_key_gets_through_however_the_output_is_cut(blocks: list[bytes]) -> None:
    shown, rest = b"", b""
    for block in blocks:
        out, rest = starter.hide(rest + block, b"sesame", last=False)
        shown += out
    out, rest = starter.hide(rest, b"sesame", last=True)
    assert rest == b""
    assert shown + out == b"".join(blocks).replace(b"sesame", starter.HIDDEN)


def start(tmp_path: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    (tmp_path / "engine.py").write_text(body)
    (tmp_path / "key").write_text(f"Authorization: Bearer {KEY}\n")
    starter = (ROOT / "templates" / "starter.py").read_text().replace("/run/lodger/key", str(tmp_path / "key"))
    (tmp_path / "starter.py").write_text(starter)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, str(tmp_path / "starter.py"), "engine", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=tmp_path)


def test_the_module_gets_the_key_and_nobody_sees_it(tmp_path: Path) -> None:
    body = "import sys, pathlib\nprint(sys.argv[1:])\nprint(pathlib.Path('/proc/self/cmdline').read_text(), file=sys.stderr)\nsys.exit(7)"
    process = start(tmp_path, body, "--port", "1")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 7
    assert KEY not in out
    assert "['--port', '1', '--api-key', '<key>']" in out


def test_a_signal_reaches_the_module_and_its_last_words_are_heard(tmp_path: Path) -> None:
    body = """import signal, sys, time
def end(*_):
    print("the end", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)"""
    process = start(tmp_path, body)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (3, "the end\n")


def test_a_module_that_is_killed_ends_the_starter(tmp_path: Path) -> None:
    process = start(tmp_path, "import os\nprint('last', flush=True)\nos.kill(os.getpid(), 9)")
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (137, "last\n")


def test_what_a_dead_module_left_behind_does_not_keep_the_starter(tmp_path: Path) -> None:
    body = "import subprocess, sys\nsubprocess.Popen(['sh', '-c', 'for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 1; done'])\nsys.exit(5)"
    process = start(tmp_path, body)
    assert process.wait(timeout=5) == 5
