"""Each parser on text that a host really gave, and readings that survive whatever a host prints in between.

data/facts holds the output of the fact script on twins: node1 and node2 with nothing of ours, and node1 deployed. Units
and mounts are cut to a few; the kernel's name and paths outside a host are replaced.
"""

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lodger.host import facts
from lodger.host.command import quote
from lodger.host.facts.base import Fact, Facts, Unreadable
from tests.unit.readings import captured


def through_sh(*wanted: Fact[str], limit: int | None = None) -> Facts:
    done = subprocess.run(["sh", "-c", facts.script(wanted)], capture_output=True, check=False, timeout=20)
    return facts.parse(done.stdout[:limit].decode("utf-8", "replace"), "node1")


def saying(name: str, text: str, code: int = 0) -> Fact[str]:
    return Fact(name, f"printf %s {quote([text])}\nexit {code}", str)


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
    with pytest.raises(Unreadable, match=r"machine was read, but its form is not known .*only one line"):
        read[facts.MACHINE]


def test_readings_survive_being_written_to_the_ledger() -> None:
    read = captured("deployed")
    again = Facts.load(read.dump(), "node1")
    assert again.sections == read.sections
    assert again[facts.CONTAINERS] == read[facts.CONTAINERS]
    for text in ("", "[]x", '{"machine": 3}'):
        with pytest.raises((ValueError, TypeError)):
            Facts.load(text)
