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

from lodger.checkout import CODE
from lodger.errors import InventoryError
from lodger.host import facts
from lodger.host.command import Command, Secret
from lodger.inventory import Fleet
from lodger.inventory.load import load
from lodger.plans.rollback import earlier_keys
from lodger.release import api_keys
from lodger.release.api_keys import ApiKey
from lodger.release.render import render
from lodger.states.base import NoUndo
from lodger.states.key_in_place import KeyInPlace
from lodger.states.old_releases_pruned import OldReleasesPruned
from templates.sglang import starter
from tests.unit.readings import deployed, readings, release_files, worker

ROOT = CODE
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
    assert api_keys.of(load(ROOT / "hosts"), "qwen38") is None


def test_the_key_is_what_the_file_holds(fleet: Fleet) -> None:
    found = api_keys.of(fleet, "qwen38")
    assert found is not None
    assert found.secret is not None
    assert found.secret.reveal() == KEY
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    "text", ["", "short", "with blanks " * 3, "two\nlines" * 5, "k" * 201, 'quote"' * 5, "$(id)" * 5, "\xe9" * 30]
)
def test_what_would_be_written_differently_elsewhere_is_no_key(fleet: Fleet, text: str) -> None:
    (fleet.folder / "pool.key").write_text(text)
    with pytest.raises(InventoryError, match="does not hold a key"):
        api_keys.of(fleet, "qwen38")


def test_a_key_that_others_can_read_is_refused(fleet: Fleet) -> None:
    (fleet.folder / "pool.key").chmod(0o640)
    with pytest.raises(InventoryError, match="others can read"):
        api_keys.of(fleet, "qwen38")


def test_a_missing_file_says_how_to_make_one(fleet: Fleet) -> None:
    (fleet.folder / "pool.key").unlink()
    with pytest.raises(InventoryError, match="cannot be read") as caught:
        api_keys.of(fleet, "qwen38")
    assert "openssl rand" in caught.value.hint


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_no_file_of_a_release_holds_the_key(fleet: Fleet, host: str) -> None:
    release = render(fleet, fleet.hosts[host])
    assert all(KEY not in file.content for file in release.files)
    assert all("starter.py" in file.content for file in release.files if file.path.endswith("compose.yml"))


def test_another_key_is_another_configuration(fleet: Fleet) -> None:
    before = [service.config for service in render(fleet, fleet.hosts["node2"]).services]
    (fleet.folder / "pool.key").write_text("another-" + KEY)
    after = [service.config for service in render(fleet, fleet.hosts["node2"]).services]
    assert len(before) == 3
    assert all(one != other for one, other in zip(before, after, strict=True))


class Keys:
    """The folder of keys of a host; what a state does there is done by a real shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, state: KeyInPlace) -> facts.Facts:
        (fact,) = state.facts
        snippet = fact.snippet.replace("/etc/lodger/keys", str(self.folder))
        done = subprocess.run(["sh", "-c", snippet], capture_output=True, text=True, check=True)
        assert "k3y-" not in done.stdout
        # On a host the files are root's; here they are those of whoever runs the tests.
        return facts.Facts({fact.name: (0, done.stdout.replace(f" {getpass.getuser()} ", " root "))})

    def do(self, *commands: Command) -> None:
        for command in commands:
            script = command.script.replace("/etc/lodger/keys", str(self.folder))
            subprocess.run(["sh", "-c", script], input=command.input_bytes(), check=True)

    def establish(self, state: KeyInPlace) -> tuple[facts.Facts, facts.Facts]:
        """Return what is read before and after."""
        before = self.read(state)
        if state.missing(before):
            assert state.blockers(before) == []
            self.do(*state.act(before))
        after = self.read(state)
        assert state.missing(after) == ""
        return before, after

    def undo(self, state: KeyInPlace, before: facts.Facts, now: facts.Facts) -> None:
        commands = state.undo(before, now)
        assert not isinstance(commands, NoUndo)
        self.do(*commands)
        assert state.undone(before, self.read(state)) == ""

    def asks(self) -> str:
        """Return the key that curl on the host would send."""
        return (self.folder / "qwen38").read_text().split()[-1]


def state(key: str) -> KeyInPlace:
    return KeyInPlace(ApiKey("qwen38", api_keys.mark(key), Secret(key)))


def earlier(key: str) -> KeyInPlace:
    """The same as a rollback knows it: by its mark alone."""
    return KeyInPlace(ApiKey("qwen38", api_keys.mark(key)))


ANOTHER = "another-" + KEY


@pytest.fixture
def held(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


def test_the_file_on_the_host_is_judged_by_content_and_access(held: Keys) -> None:
    one = state(KEY)
    assert one.missing(held.read(one)) == "the host has no key of pool qwen38"
    held.establish(one)
    assert held.asks() == KEY
    path = held.folder / f"qwen38.{api_keys.mark(KEY)}"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert one.missing(held.read(one)) == f"/etc/lodger/keys/{path.name} can be read by others"
    held.establish(one)
    path.write_text(f"Authorization: Bearer {ANOTHER}\n")
    assert one.missing(held.read(one)) == "the host has another key of pool qwen38"
    held.establish(one)
    assert held.asks() == KEY


def test_the_key_travels_by_standard_input(held: Keys) -> None:
    one = state(KEY)
    commands = one.act(held.read(one))
    assert all(KEY not in command.script and KEY not in str(command) for command in commands)
    assert [command.input_bytes() for command in commands if command.stdin] == [f"Authorization: Bearer {KEY}\n".encode()]


def test_setting_changing_and_going_back_bring_each_release_its_own_key(held: Keys) -> None:
    held.establish(state(KEY))
    held.establish(state(ANOTHER))
    assert held.asks() == ANOTHER
    assert earlier(KEY).missing(held.read(earlier(KEY))) == "pool qwen38 still uses another key"
    held.establish(earlier(KEY))
    assert held.asks() == KEY
    assert state(ANOTHER).missing(held.read(state(ANOTHER))), "the next deploy does not believe the wrong key"


def test_a_key_that_is_gone_is_refused_before_anything_is_restarted(held: Keys) -> None:
    held.establish(state(ANOTHER))
    (blocker,) = earlier(KEY).blockers(held.read(earlier(KEY)))
    assert blocker.what == "the key of pool qwen38 that the earlier release needs is not on the host"
    assert not blocker.awaits


def test_an_undo_puts_back_the_key_that_was_there_or_none(held: Keys) -> None:
    first = held.establish(state(KEY))
    held.undo(state(KEY), *first)
    assert not held.folder.exists()
    held.establish(state(KEY))
    second = held.establish(state(ANOTHER))
    held.undo(state(ANOTHER), *second)
    assert held.asks() == KEY
    assert sorted(path.name for path in held.folder.iterdir()) == ["qwen38", f"qwen38.{api_keys.mark(KEY)}"]
    back = held.establish(state(KEY))
    assert isinstance(state(KEY).undo(*back), NoUndo)


def test_a_key_from_before_keys_had_names_is_kept_for_an_undo(held: Keys) -> None:
    held.folder.mkdir()
    (held.folder / "qwen38").write_text(f"Authorization: Bearer {ANOTHER}\n")
    (held.folder / "qwen38").chmod(0o600)
    done = held.establish(state(KEY))
    held.undo(state(KEY), *done)
    assert held.asks() == ANOTHER


def test_only_keys_that_kept_releases_ask_for_are_kept() -> None:
    old, new = (worker("a", pool="qwen38", key=mark) for mark in ("0000aaaa", "0000bbbb"))
    there = ("other.0000aaaa", "qwen38", "qwen38.0000aaaa", "qwen38.0000bbbb", "qwen38.0000cccc")
    files = {**release_files("r1", old), **release_files("r2", new)}
    read = readings({facts.DEPLOYED: deployed(("r1", "r2"), files=files, keys=there)})
    assert OldReleasesPruned("r2").missing(read) == "no release needs the key other.0000aaaa"
    gone = "rm -f /etc/lodger/keys/other.0000aaaa /etc/lodger/keys/qwen38.0000cccc; "
    assert [command.script.startswith(gone) for command in OldReleasesPruned("r2").act(read)] == [False, True], (
        "and releases stay"
    )
    right = readings({facts.DEPLOYED: deployed(("r1", "r2"), files=files, keys=there[1:4])})
    assert OldReleasesPruned("r2").missing(right) == ""


def test_with_the_last_release_its_keys_go() -> None:
    read = readings({facts.DEPLOYED: deployed((), stored=("r1",), keys=("qwen38", "qwen38.0000aaaa"))})
    said = "\n".join(command.script for command in OldReleasesPruned("").act(read))
    assert "rm -f /etc/lodger/keys/qwen38 /etc/lodger/keys/qwen38.0000aaaa; rmdir" in said


def test_a_release_names_the_file_of_its_key_and_a_rollback_asks_with_it(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node2"])
    path = f"/etc/lodger/keys/qwen38.{api_keys.mark(KEY)}"
    composes = [file.content for file in release.files if file.path.endswith("compose.yml")]
    assert all(f'source: "{path}"' in text for text in composes)
    services = release.by_name
    assert {service.key_file for service in services.values()} == {path}
    assert earlier_keys(services) == (ApiKey("qwen38", api_keys.mark(KEY)),)
    assert earlier_keys({"worker-a": worker("a")}) == ()


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
    starter = (ROOT / "templates" / "sglang" / "starter.py").read_text().replace("/run/lodger/key", str(tmp_path / "key"))
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
