"""Listings, names, plans, manifests and progress of a fetch: what is read, what is believed, what is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from lodger.capacity import checkpoint
from lodger.checkout import CODE
from lodger.weights import model_files
from lodger.weights.hub import Hash
from lodger.weights.plan import Planned
from tests.unit.weights.support_weights import a_plan

CONFIG = '{"model_type": "tiny"}\n'
OF_CONFIG = {
    "sha256": hashlib.sha256(CONFIG.encode()).hexdigest(),
    "git": subprocess.run(
        ["git", "hash-object", "--stdin"], input=CONFIG, capture_output=True, text=True, check=True
    ).stdout.strip(),
}


@pytest.mark.parametrize("kind", OF_CONFIG)
@pytest.mark.parametrize(("there", "wanted"), [(None, ["config.json"]), (CONFIG, []), (CONFIG + " ", ["config.json"])])
def test_only_what_is_not_kept_as_it_is_listed_is_read(kind: str, there: str | None, wanted: list[str], tmp_path: Path) -> None:
    if there is not None:
        (tmp_path / "config.json").write_text(there)
    one = a_plan(Planned("config.json", 23, Hash(kind, OF_CONFIG[kind])), Planned("README.md", 1, Hash("none")))
    assert model_files.unread(one, tmp_path) == wanted
    assert model_files.unread(a_plan(Planned("config.json", 23, Hash("none"))), tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, CONFIG, "written"),
        ('{"_source": "public figures"}', CONFIG, "written"),
        (CONFIG, CONFIG, ""),
        ('{"model_type": "edited"}', '{"model_type": "edited"}', "differs"),
        ("no JSON", "no JSON", "differs"),
    ],
)
def test_a_published_file_replaces_a_reconstructed_one_and_no_other(
    before: str | None, after: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "m" / "config.json"
    if before is not None:
        path.parent.mkdir()
        path.write_text(before)
    assert said in model_files.keep(path, CONFIG)
    assert path.read_text() == after
    assert model_files.keep(path, after) == ""


def test_a_model_in_a_single_file_gets_an_index_that_capacity_understands(tmp_path: Path) -> None:
    """Without one, every later task ended with a mistake of the inventory that nobody could mend."""
    one = a_plan(*(Planned(path, size, Hash("none")) for path, size in (("model.safetensors", 3_848_000_000), ("x.txt", 9))))
    folder = tmp_path / "qwen3.8-27b-dflash2"
    model_files.keep(folder / model_files.INDEX, model_files.index(one))
    (folder / "config.json").write_text((CODE / "hosts/models" / folder.name / "config.json").read_text())
    known = checkpoint.read(tmp_path, folder.name)
    assert known is not None
    assert known.weight_bytes == 3_848_000_000
    assert json.loads(model_files.index(a_plan(Planned("model.bin", 5, Hash("none")))))["metadata"]["total_size"] == 5
