"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

import io
import tarfile
from dataclasses import replace

import pytest

from lodger.host.facts.base import Facts
from lodger.host.facts.deployed import HostFile
from lodger.release.manifest import manifest_text
from lodger.states.base import NoUndo
from lodger.states.release_staged import archive
from tests.unit.readings import HOST, base, deployed, readings
from tests.unit.states.support_states import FILES, MANIFEST, STAGED, A, scripts, shown

ROOT = "/opt/lodger/releases/ab12"


def staged(**changes: HostFile | None) -> Facts:
    there: dict[str, HostFile | None] = {
        "worker-a/compose.yml": HostFile("x: 1\n", 0o644, "root"),
        f"units/{A.unit}": HostFile("[Unit]\n", 0o644, "root"),
        "manifest.json": HostFile(MANIFEST, 0o644, "root"),
    }
    files = {f"{ROOT}/{path}": file for path, file in (there | changes).items() if file is not None}
    return readings(base(deployed=deployed(stored=("ab12",), files=files)))


def test_a_release_that_stands_as_it_should_is_satisfied() -> None:
    assert STAGED.missing(staged()) == ""


@pytest.mark.parametrize(
    ("path", "file", "said"),
    [
        ("worker-a/compose.yml", None, "is missing"),
        ("worker-a/compose.yml", HostFile("x: 2\n", 0o644, "root"), "was changed on the host"),
        ("worker-a/compose.yml", HostFile("x: 1\n", 0o666, "root"), "was changed on the host"),
        ("worker-a/compose.yml", HostFile("x: 1\n", 0o644, "mallory"), "was changed on the host"),
        ("manifest.json", None, "is missing"),
        ("manifest.json", HostFile("{", 0o644, "root"), "was changed"),
        ("manifest.json", HostFile("[]", 0o644, "root"), "was changed"),
        ("manifest.json", HostFile(manifest_text("ab12", HOST, "r1", [replace(A, port=1)], {}), 0o644, "root"), "was changed"),
        ("worker-a/extra", HostFile("", 0o644, "root"), "does not belong to the release"),
    ],
)
def test_a_release_edited_by_hand_is_found(path: str, file: HostFile | None, said: str) -> None:
    assert STAGED.missing(staged(**{path: file})) == f"{ROOT}/{path} {said}"


def test_the_same_release_from_a_later_revision_is_the_same() -> None:
    later = HostFile(manifest_text("ab12", HOST, "r2", [A], {}), 0o644, "root")
    assert STAGED.missing(staged(**{"manifest.json": later})) == ""


def test_a_release_is_uploaded_beside_checked_there_and_then_put_in_place() -> None:
    read = readings(base())
    assert STAGED.missing(read) == "release ab12 is not on the host"
    actions = STAGED.act(read)
    upload, verify, compose, place = shown(actions)
    assert "tar -x --no-same-owner -C /opt/lodger/releases/.ab12.new" in upload
    assert "systemd-analyze verify" in verify
    assert f"/opt/lodger/releases/.ab12.new/units/{A.unit}" in verify
    assert compose == "docker compose -f /opt/lodger/releases/.ab12.new/worker-a/compose.yml config --quiet"
    assert "mv -T /opt/lodger/releases/.ab12.new /opt/lodger/releases/ab12" in place
    with tarfile.open(fileobj=io.BytesIO(actions[0].input_bytes() or b"")) as tar:
        assert sorted(tar.getnames()) == ["manifest.json", f"units/{A.unit}", "worker-a/compose.yml"]
        assert {(one.uid, one.gid, one.mode) for one in tar.getmembers()} == {(0, 0, 0o644)}


def test_the_archive_of_the_same_files_is_the_same_bytes() -> None:
    assert archive(FILES) == archive(reversed(FILES))


def test_only_a_release_that_this_run_staged_is_removed_again() -> None:
    fresh, there = readings(base()), staged()
    assert "rm -rf /opt/lodger/releases/ab12 " in scripts(STAGED.undo(fresh, there))
    assert STAGED.undone(fresh, there) == f"{ROOT} is still there"
    assert STAGED.undone(fresh, fresh) == ""
    assert isinstance(STAGED.undo(there, there), NoUndo)
    assert STAGED.undone(there, there) == ""
