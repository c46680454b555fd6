"""The site's own inventory, broken one way at a time: each mistake is named with file, line, path and what is accepted."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from lodger.inventory import strict_yaml


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_reading_any_text_ends_in_values_or_problems(text: str) -> None:
    document = strict_yaml.read(text.encode("utf-8", "surrogatepass"))
    assert all(problem.text and problem.line >= 1 for problem in document.problems)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_plain_values_read_back_as_themselves(value: float) -> None:
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    document = strict_yaml.read(f"key: {written}\n".encode())
    assert document.problems == []
    assert isinstance(document.data, dict)
    read = document.data["key"]
    assert type(read) is type(value)
    assert math.isclose(read, value)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.isprintable))
def test_quoted_text_stays_the_text_it_is(text: str) -> None:
    quoted = text.replace("'", "''")
    assert strict_yaml.read(f"key: '{quoted}'\n".encode()).data == {"key": text}
