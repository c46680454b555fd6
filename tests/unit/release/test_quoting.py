"""No text that the inventory accepts means anything but itself, to a shell, a YAML reader, Compose or systemd.

Here with a real `sh` and with readers written for the test; tests/twins/test_quoting_real.py asks the real programs.
"""

import re
import subprocess

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from lodger.host.command import quote
from lodger.inventory.values import Text, Value
from lodger.release.quoting import compose_value, exec_word, unit_text

NASTY = [
    "$HOME ${HOME:-x} $$ $(id) `id`",
    """it's "quoted" \\" \\' \\\\""",
    "%n %% %i 100%",
    "a: b # c",
    "- [x, {y: z}] & *a !t |>",
    "; rm -rf / && true | false > /dev/null",
    " leading and trailing ",
    "\\",
    "'",
    '"',
    "实验室 🚀 é",
    "=~{}?",
]
printable = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.isprintable) | st.sampled_from(NASTY)
accepted = TypeAdapter(Text)


@settings(max_examples=60, deadline=None)
@given(st.lists(printable, min_size=1, max_size=20))
@example(NASTY)
def test_words_reach_a_program_through_a_real_shell_unchanged(words: list[str]) -> None:
    script = quote(["printf", r"%s\0", *words])
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={"HOME": "/x"}, timeout=20)
    assert done.stdout.decode().split("\0")[:-1] == words


@settings(max_examples=200, deadline=None)
@given(printable)
def test_compose_values_read_back_as_the_text_they_are(text: str) -> None:
    assert accepted.validate_python(text) == text
    written = compose_value(text)
    # Compose reads YAML first and replaces variables afterwards; with every $ doubled there is none.
    value, same = (load(f"key:\n  - {written}\n")["key"][0] for load in (YAML(typ="safe").load, yaml.safe_load))
    assert value == same
    assert re.sub(r"\$\$", "", value).count("$") == 0
    assert value.replace("$$", "$") == text


@settings(max_examples=200, deadline=None)
@given(printable)
def test_exec_words_read_back_as_the_text_they_are(text: str) -> None:
    assert _systemd_words(exec_word(text)) == [text]


def _systemd_words(line: str) -> list[str]:
    """Take a line of quoted words apart as systemd.service(5) says: quotes and escapes, then % specifiers, then variables."""
    words = [re.sub(r"\\(.)", r"\1", found) for found in re.findall(r'"((?:[^"\\]|\\.)*)"', line)]
    for word in words:
        assert not re.sub("%%", "", word).count("%")
        assert not re.sub(r"\$\$", "", word).count("$")
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


@settings(max_examples=200, deadline=None)
@given(printable)
def test_unit_text_has_no_specifier_left(text: str) -> None:
    written = unit_text(text)
    assert not written.replace("%%", "").count("%")
    assert written.replace("%%", "%") == text


@pytest.mark.parametrize(
    "text", ["", "a\nb", "a\rb", "a\tb", "a\0b", "\x1b[31m", "\x7f", "a\u2028b", "a\u0085b", "\ufeffa", "\u202ea"]
)
def test_text_that_could_break_a_line_or_a_terminal_is_not_accepted(text: str) -> None:
    with pytest.raises(ValidationError):
        accepted.validate_python(text)


@pytest.mark.parametrize("text", ["-x", "--port", "-"])
def test_value_that_would_be_an_option_is_not_accepted(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Value).validate_python(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=8))
def test_accepted_text_is_on_one_line_whoever_splits_it(text: str) -> None:
    try:
        accepted.validate_python(text)
    except ValidationError:
        return
    assert text.splitlines() == [text]
