"""What an operator reads while a run goes on, where standard error is no terminal and where it is one."""

import contextlib
import io

import pytest

from lodger.errors import StateFailed
from lodger.run.outcome import StateResult, Status
from lodger.terminal import Terminal, table


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


ERROR = StateFailed("it is not ready", cause="health answers 503", hint="wait", host="node1", state="worker_ready(a)")


def test_an_error_is_a_sentence_a_cause_a_hint_and_the_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().error(ERROR, "one\ntwo")
    assert capsys.readouterr().err == (
        "node1: worker_ready(a): it is not ready\n  cause: health answers 503\n  hint: wait\n  seen last:\n    one\n    two\n"
    )
    Terminal().error(StateFailed("plain"))
    assert capsys.readouterr().err == "plain\n"


def test_an_error_is_red_on_a_terminal() -> None:
    with contextlib.redirect_stderr(Tty()) as tty:
        Terminal().error(ERROR)
    assert tty.getvalue().startswith("\033[31mnode1: worker_ready(a): it is not ready\033[0m\n")


def test_states_stand_in_columns_and_only_a_failure_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.state("node1", StateResult("host_fit", Status.SATISFIED, 0.0, "ignored"))
    terminal.state("node1", StateResult("worker_ready(a)", Status.FAILED, 65.4, "it ended"))
    assert capsys.readouterr().err == "node1  satisfied    host_fit\nnode1  failed       worker_ready(a)  65.4 s  (it ended)\n"


def test_progress_without_a_terminal_is_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    for number in range(100):
        terminal.progress("node1", f"loading\n{number} %")
    terminal.progress("node2", "loading")
    assert capsys.readouterr().err == "node1  ... loading 0 %\nnode2  ... loading\n"


def test_progress_on_a_terminal_replaces_itself_and_a_note_stays() -> None:
    with contextlib.redirect_stderr(Tty()) as tty:
        terminal = Terminal()
        terminal.progress("node1", "loading")
        terminal.progress("node1", "loading")
        terminal.progress("node1", "warming up")
        terminal.note("node1", "done")
    assert tty.getvalue().count("loading") == 1
    assert tty.getvalue().endswith("warming up\033[0m\r\033[Knode1  done\n")


def test_columns_of_a_table() -> None:
    assert table([("a", 1), ("long", 22)]) == "a     1\nlong  22"
