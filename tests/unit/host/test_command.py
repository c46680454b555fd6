"""A command reaches a real shell as it was meant, reads as one would type it, and keeps its secrets."""

import copy
import dataclasses
import json
import logging
import pickle
import subprocess
import traceback

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lodger.errors import CommandFailed
from lodger.host import paths
from lodger.host.command import Command, Result, Secret, quote, run

VALUE = "hunter2-\u5bc6\u7801"
# What an argument can hold at all: anything but NUL, in what UTF-8 can say.
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def sh(script: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", script], input=stdin, capture_output=True, check=False, timeout=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(words, max_size=10))
@example(["", "-n", "$(id)", "a\nb", "it's", '"', "\\", "~", "*", "a;b", "`x`", "!x", "#", "&", "\t"])
def test_argv_reaches_a_program_through_a_real_shell_unchanged(argv: list[str]) -> None:
    done = sh(quote(["printf", r"%s\0", "first", *argv]))
    assert done.stdout.decode().split("\0")[1:-1] == argv


@settings(max_examples=60, deadline=None)
@given(st.lists(words, max_size=6))
@example(["a;b", "$HOME", "x y", "new\nline", "'"])
def test_a_command_as_it_is_shown_does_the_same_when_typed(argv: list[str]) -> None:
    command = run("printf", r"%s\0", "first", *argv, sudo=False)
    assert sh(str(command)).stdout == sh(command.script).stdout


@pytest.mark.parametrize(
    "script", ["cd /tmp && pwd", "echo $((6 * 7)); exit 3", "for i in 1 2; do\n echo $i\ndone", "a=1; echo $a"]
)
def test_a_script_as_it_is_shown_does_the_same_when_typed(script: str) -> None:
    typed, meant = sh(str(Command(script, sudo=False))), sh(script)
    assert (typed.returncode, typed.stdout) == (meant.returncode, meant.stdout)


@pytest.mark.parametrize("script", ["echo $HOME", "echo `id -u`", "true; id", "id | cat", "id > f", "id && id", "id\nid"])
def test_all_of_a_script_is_shown_as_run_by_sudo(script: str) -> None:
    assert str(Command(script)) == f"sudo sh -c {quote([script])}"


def test_sudo_and_the_length_of_the_input_are_shown_and_the_input_is_not() -> None:
    assert str(run("true")) == "sudo true"
    assert str(run("true", sudo=False)) == "true"
    shown = str(run("tee", "/etc/lodger/key", stdin=b"0123456789"))
    assert shown == "sudo tee /etc/lodger/key <<10 bytes of input>>"
    assert "0123456789" not in repr(run("tee", stdin=b"0123456789"))


@settings(max_examples=60, deadline=None)
@given(st.binary() | st.text().map(str.encode))
@example(b"it's\n$HOME `id` %s \\n")
@example(b"\0\xff")
def test_what_is_left_to_be_run_by_hand_brings_its_input_along(content: bytes) -> None:
    assert sh(run("cat", sudo=False, stdin=content).by_hand()).stdout == content


def test_a_secret_is_revealed_only_when_asked() -> None:
    assert Secret(VALUE).reveal() == VALUE
    assert run("cat", stdin=Secret(VALUE)).input_bytes() == VALUE.encode()
    assert run("cat").input_bytes() is None


@pytest.mark.parametrize(
    "show",
    [
        str,
        repr,
        ascii,
        lambda secret: f"{secret} {secret!r} {secret!s:>40} {secret:^20}",
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031  each way of formatting is the point
        lambda secret: "{} {!r}".format(secret, secret),  # noqa: UP032  str.format is what is tried
        lambda secret: str([secret, {"key": secret}, (secret,)]),
        lambda secret: repr(run("cat", stdin=secret)),
        lambda secret: str(run("cat", stdin=secret)),
        lambda secret: run("cat", stdin=secret).by_hand(),
        lambda secret: repr(Result(run("cat", stdin=secret), 0, "", "", 0.1)),
        lambda secret: repr(dataclasses.make_dataclass("Holder", ["secret"])(secret)),
        lambda secret: logging.LogRecord("x", 20, "f", 1, "it is %s", (secret,), None).getMessage(),
    ],
)
def test_a_secret_does_not_show(show: object) -> None:
    assert callable(show)
    assert VALUE not in show(Secret(VALUE))
    assert "hunter2" not in show(Secret(VALUE))


@pytest.mark.parametrize("move", [pickle.dumps, json.dumps, copy.deepcopy, lambda secret: "".join([secret])])
def test_a_secret_is_not_carried_elsewhere(move: object) -> None:
    assert callable(move)
    with pytest.raises(TypeError) as caught:
        move(Secret(VALUE))
    assert VALUE not in str(caught.value)


def test_a_command_that_holds_a_secret_is_not_pickled_or_taken_apart() -> None:
    command = run("cat", stdin=Secret(VALUE))
    with pytest.raises(TypeError):
        pickle.dumps(command)
    with pytest.raises(TypeError):
        dataclasses.asdict(command)


def test_a_traceback_with_local_variables_does_not_show_a_secret() -> None:
    def fails(command: Command, secret: Secret) -> None:
        raise CommandFailed(f"`{command}` ended badly with {secret}")

    try:
        fails(run("cat", stdin=Secret(VALUE)), Secret(VALUE))
    except CommandFailed as error:
        shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        assert "secret = <secret>" in shown
        # The test's own source line is quoted too, and does not hold the value.
        assert VALUE not in shown


def test_secrets_compare_and_hash_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_a_result_names_the_command_and_the_last_line_it_printed() -> None:
    result = Result(run("docker", "pull", "x"), 1, "pulling\n", "one\nno such host\n\n", 0.1)
    with pytest.raises(CommandFailed) as caught:
        result.check("node1")
    assert str(caught.value) == "node1: `sudo docker pull x` ended with exit code 1 (no such host)"


def test_exit_codes_that_count_as_well_pass() -> None:
    result = Result(run("grep", "x", ok=(0, 1)), 1, "", "", 0.1)
    assert result.ok
    assert result.check() is result
    with pytest.raises(CommandFailed, match="it printed nothing"):
        Result(run("true"), 5, "", "", 0.1).check()


def test_a_file_is_written_whole_with_its_mode_or_not_at_all(tmp_path: object) -> None:
    path = f"{tmp_path}/new folder/it's.json"
    command = paths.write(path, "one\n\u5bc6 $HOME\n", why="test", mode="0600")
    assert sh(command.script, command.input_bytes()).returncode == 0
    listed = sh(f"stat -c '%a %s' {quote([path])}; cat {quote([path])}; ls {quote([path.rpartition('/')[0]])} | wc -l").stdout
    assert listed.decode() == "600 14\none\n\u5bc6 $HOME\n1\n"
    # The same under a limit on file sizes, which fails as a full disk does: the old content stays.
    limited = paths.write(path, "x" * 4096, why="test")
    assert sh(f"trap '' XFSZ; ulimit -f 1; {limited.script}", limited.input_bytes()).returncode != 0
    assert sh(f"cat {quote([path])}").stdout.decode() == "one\n\u5bc6 $HOME\n"
