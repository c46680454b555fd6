"""What an image's tag says of the engine in it: one answer for rules, releases and doctor."""

import pytest

from lodger.engines.sglang.image import version
from lodger.inventory import Image


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        ("v0.5.19-cu129", "0.5.19"),
        ("0.5.19", "0.5.19"),
        ("v0.5.12.post1-cu129", "0.5.12.post1"),
        ("v0.5.20rc1", "0.5.20rc1"),
        ("nightly-0.5", ""),
        ("v0.5x", ""),
        ("v0.5", ""),  # a release said 0.5 and expected that of its worker, which says 0.5.19
        ("v0.5.19_ours", ""),  # rules took it for 0.5.19, a release for none
    ],
)
def test_a_version_is_read_from_a_tag_or_not_at_all(tag: str, told: str) -> None:
    assert version(Image(repository="r/sglang", tag=tag)) == told
