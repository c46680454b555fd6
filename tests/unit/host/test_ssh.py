"""What of the transport can be seen without a host: a command's input is there whole, or the command does not begin."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lodger.host import paths
from lodger.host.ssh import whole

CUT = 74


def sh(script: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", script], input=given, capture_output=True, timeout=20, check=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=200), st.data())
def test_input_arrives_as_it_is_and_cut_off_anywhere_it_begins_nothing(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"as it was")
    script = whole(f"cat > {target}", len(content))
    if content:
        cut = data.draw(st.integers(0, len(content) - 1))
        ended = sh(script, content[:cut])
        assert (ended.returncode, target.read_bytes()) == (CUT, b"as it was")
        assert b"did not arrive whole" in ended.stderr

    assert sh(script, content).returncode == 0
    assert target.read_bytes() == content


@pytest.mark.parametrize("script", ["exit 3", "true; false || exit 3", "cat >/dev/null; (exit 3)", "exit 3 # why"])
def test_the_exit_code_is_the_command_s_own_whether_it_reads_its_input_or_not(script: str) -> None:
    assert sh(whole(script, 5), b"hello").returncode == 3


def test_a_large_input_goes_through(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    assert sh(whole(f"cat > {tmp_path}/file", len(content)), content).returncode == 0
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_whose_text_is_cut_off_stays_as_it_was(tmp_path: Path) -> None:
    """The file is what an unfinished run has stopped: with nothing in it, nobody would be put back."""
    file = tmp_path / "var" / "unfinished.json"
    command = paths.write(str(file), '{"stops": []}\n', why="write the ledger")
    given = command.input_bytes() or b""
    assert sh(whole(command.script, len(given)), given).returncode == 0
    again = paths.write(str(file), '{"stops": ["program aigc-creator"]}\n', why="write the ledger")
    for sent in (b"", (again.input_bytes() or b"")[:9]):
        assert sh(whole(again.script, len(again.input_bytes() or b"")), sent).returncode == CUT
    assert file.read_text() == '{"stops": []}\n'
    assert [one.name for one in file.parent.iterdir()] == ["unfinished.json"]
