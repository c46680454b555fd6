"""Listings, names, plans, manifests and progress of a fetch: what is read, what is believed, what is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from lodger.errors import Refused
from lodger.inventory import Model
from lodger.weights import host, plan
from lodger.weights.hub import Hash
from lodger.weights.plan import FetchManifest, FoundFolder, Planned
from tests.unit.weights.support_weights import COMMIT, OTHER, REPO, SHA, a_plan

MANIFEST = FetchManifest({"commit": COMMIT, "revision": "-"}, {"a": (Hash("sha256", SHA), 5, 1000)})


def found(
    files: Mapping[str, tuple[str, int, int]] | None = None, *, half: Mapping[str, int] | None = None, free: int = 10**9
) -> FoundFolder:
    return FoundFolder("/data/models/M", "/data/models", dict(files or {}), dict(half or {}), free)


def test_a_folder_is_read_from_the_host_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "models"
    folder = root / "M"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a b").write_text("12345")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / ".lodger").mkdir(mode=0o755)
    (folder / ".lodger" / "k.part").write_text("123")
    (folder / ".lodger" / "manifest").write_text(f"#commit\t{COMMIT}\n#revision\t-\nsha256:{SHA}\t5\t1000\ta\n")
    one = host.reading(str(root), Model(directory="M", source=REPO))
    read = one.found.parse(subprocess.run(["sh", "-c", one.found.snippet], capture_output=True, text=True, check=True).stdout)
    assert (read.real, read.real_root) == (str(folder), str(root))
    assert read.free > 0
    assert {path: kind for path, (kind, _, _) in read.files.items()} == {"sub": "d", "sub/a b": "f", "link": "l"}
    assert read.files["sub/a b"] == ("f", 5, int((folder / "sub" / "a b").stat().st_mtime))
    assert read.half == {"k.part": 3}
    assert read.own == f"{os.getuid()} 755 directory"
    assert plan.strangers(["sub/a b"], read) == ["link"]
    written = subprocess.run(["sh", "-c", one.manifest.snippet], capture_output=True, text=True, check=True).stdout
    assert one.manifest.parse(written) == MANIFEST
    assert one.manifest.parse("") is None


@pytest.mark.parametrize(
    ("revision", "fits"), [(None, True), (COMMIT, True), (OTHER, False), ("main", False)]
)  # fmt: skip
def test_a_manifest_answers_for_its_revision(revision: str | None, fits: bool) -> None:
    assert MANIFEST.answers(revision) is fits


@pytest.mark.parametrize("there", [{}, {"a": ("f", 4, 1000)}, {"a": ("f", 5, 1001)}, {"a": ("l", 5, 1000)}])
def test_a_file_that_was_touched_is_looked_at_again(there: dict[str, tuple[str, int, int]]) -> None:
    assert not plan.complete(MANIFEST, found(there))
    assert plan.complete(MANIFEST, found({"a": ("f", 5, 1000), "b": ("f", 1, 1)}))


def test_room_is_needed_for_what_is_neither_in_place_nor_half_there() -> None:
    files = [Planned(path, 100, Hash("sha256", SHA)) for path in "abcd"]
    half = {f"{files[1].key}.part": 30, f"{files[2].key}.ok": 100}
    assert plan.needed(a_plan(*files), found({"a": ("f", 100, 1)}, half=half)) == 70 + 0 + 100
    assert plan.needed(a_plan(*files), found({"a": ("f", 99, 1)})) == 400


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"a": ("l", 5, 1)}, "symbolic link"),
        ({"a": ("d", 5, 1)}, "a folder"),
        ({"sub": ("l", 5, 1)}, "symbolic link"),
        ({"sub": ("f", 5, 1)}, "a file"),
        ({"a": ("p", 5, 1)}, "something else"),
        ({"a": ("f", 4, 1)}, "other content"),
    ],
)
def test_what_stands_in_the_way_is_refused(there: dict[str, tuple[str, int, int]], said: str) -> None:
    one = a_plan(Planned("a", 5, Hash("sha256", SHA)), Planned("sub/b", 5, Hash("sha256", SHA)))
    with pytest.raises(Refused) as caught:
        plan.refuse(one, None, found(there), overwrite=False)
    assert said in caught.value.what


def test_what_a_fetch_of_ours_left_may_be_replaced_and_what_else_differs_when_asked() -> None:
    one = a_plan(Planned("a", 7, Hash("sha256", SHA)))
    ours, theirs = found({"a": ("f", 5, 1000)}), found({"a": ("f", 5, 1001)})
    plan.refuse(one, MANIFEST, ours, overwrite=False)
    plan.refuse(one, MANIFEST, theirs, overwrite=True)
    with pytest.raises(Refused):
        plan.refuse(one, MANIFEST, theirs, overwrite=False)


@pytest.mark.parametrize(
    ("own", "refused"),
    [("", False), ("0 700 directory", False), ("0 2700 directory", False), ("1000 700 directory", True), ("0 755 directory", True),
     ("0 777 symbolic link", True)],
)  # fmt: skip
def test_a_folder_of_our_name_that_is_not_ours_is_refused(own: str, refused: bool) -> None:
    with pytest.raises(Refused, match="not ours") if refused else contextlib.nullcontext():
        plan.refuse(a_plan(), None, replace(found(), own=own), overwrite=True)


def test_a_folder_behind_a_link_is_refused() -> None:
    with pytest.raises(Refused, match="symbolic link"):
        plan.refuse(a_plan(), None, replace(found(), real="/srv/elsewhere"), overwrite=True)
    plan.refuse(a_plan(), None, FoundFolder("/gluster/M", "/gluster", {}, {}, 1), overwrite=False)
