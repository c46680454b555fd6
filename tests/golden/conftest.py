"""Golden files: what the code gives, kept as files that a person reads in a review.

To accept a change:  LODGER_GOLDEN_UPDATE=1 pytest tests/golden   and then read `git diff tests/golden`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
UPDATE = os.environ.get("LODGER_GOLDEN_UPDATE") == "1"

Golden = Callable[[str, Mapping[str, str]], None]


@pytest.fixture
def golden() -> Golden:
    """Compare files, byte for byte, with those in a folder below tests/golden; neither may have one more."""

    def compare(folder: str, files: Mapping[str, str]) -> None:
        root = HERE / folder
        kept = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        if UPDATE:
            for path in kept.values():
                path.unlink()
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content, encoding="utf-8", newline="")
            return
        assert sorted(files) == sorted(kept), f"files of {folder}; {__doc__}"
        for name, content in files.items():
            assert content == kept[name].read_bytes().decode("utf-8"), f"{folder}/{name}; {__doc__}"

    return compare
