"""Listings, names, plans, manifests and progress of a fetch: what is read, what is believed, what is refused."""

from __future__ import annotations

import socketserver
import subprocess
import threading
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.hub import server as hub_server
from lodger import inventory
from lodger.checkout import ROOT
from lodger.errors import Refused
from lodger.host.command import Command, Result
from lodger.weights import host, plan, progress
from lodger.weights.ask_hubs import HubQuestions
from lodger.weights.hub import Hash, HubError, Listed, Listing
from lodger.weights.plan import FetchPlan, Planned, Source
from tests.unit.weights.support_weights import COMMIT, OTHER, REPO, SHA, SHA1, a_plan, listing


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "a\nb", "a\tb", "a\x00", "\x1b[2J", "a\\b", ".lodger/manifest",
     ".lodger", "\u202egpj.exe", "\ud800", "a" * 256, "模" * 86, "/".join(["a" * 200] * 6)],
)  # fmt: skip
def test_a_name_that_is_not_to_be_trusted(path: str) -> None:
    assert plan.trouble(path)


@pytest.mark.parametrize(
    "path", ["config.json", "a/b/c", ".gitattributes", "a b.txt", "-rf", "..a", "a..", "模型.bin", "#x", "$(id)", "'", '"']
)
def test_a_name_that_hubs_do_have(path: str) -> None:
    assert not plan.trouble(path)


@given(st.text() | st.lists(st.sampled_from(["..", ".", "", "a", ".lodger", "\\", "~"])).map("/".join))
def test_no_name_that_passes_leaves_the_folder_or_breaks_a_line(path: str) -> None:
    if not plan.trouble(path):
        pure = PurePosixPath("/models/M") / path
        assert ".." not in pure.parts
        assert str(pure) == f"/models/M/{path}"
        assert pure.parts[:3] == ("/", "models", "M") and len(pure.parts) > 3  # noqa: PT018  one thought
        assert not {"\n", "\t", "\0", "\r"} & set(path)
        assert len(Planned(path, 1, Hash("none")).key.encode()) < 200


@given(st.text(min_size=1).filter(lambda path: not plan.trouble(path)), st.integers(0, 2**50))
def test_a_plan_is_read_as_it_was_written(path: str, size: int) -> None:
    one = a_plan(
        Planned(path, size, Hash("sha256", SHA), ("http://x/1", "http://y/2")), Planned("config.json.x", 1, Hash("none"))
    )
    read = plan.parse_plan(one.text(), one.root, one.directory)
    assert read == replace(one, files=tuple(one.ordered))
    assert read.id == one.id


@pytest.mark.parametrize(
    ("paths", "what"),
    [(["a", "a"], "twice"), (["a", "a/b"], "twice"), (["a/b/c", "a/b"], "twice"), ([], "no file"), (["../a"], "trusted")],
)
def test_a_listing_that_is_not_believed(paths: list[str], what: str) -> None:
    files = tuple(Listed(path, 1, Hash("sha256", SHA), "/x") for path in paths)
    with pytest.raises(HubError, match=what):
        plan.judged(Listing("huggingface", COMMIT, files))


def test_the_hub_with_the_revision_decides_and_the_preferred_one_gives_what_is_the_same() -> None:
    right, wrong = Hash("sha256", SHA), Hash("sha256", "e" * 64)
    first = listing(
        "modelscope", OTHER, same=(5, right), other=(5, wrong), longer=(6, right), small=(3, right), extra=(1, right)
    )
    second = listing("huggingface", COMMIT, same=(5, right), other=(5, right), longer=(5, right), small=(3, Hash("git", SHA1)))
    sources = [Source("http://ms", first, False), Source("http://hf", second, True)]
    one = plan.agreed(sources, "m", "/data/models", "M", REPO, COMMIT)
    assert (one.origin, one.commit, one.revision) == ("huggingface", COMMIT, COMMIT)
    urls = {file.path: [url.partition("/same")[0].partition(":")[2][:4] for url in file.urls] for file in one.files}
    assert urls == {"same": ["//ms", "//hf"], "other": ["//hf"], "longer": ["//hf"], "small": ["//ms", "//hf"]}
    assert {file.path: file.hash.kind for file in one.files}["small"] == "git"
    with pytest.raises(ValueError, match="none"):
        plan.agreed(sources[:1], "m", "/data/models", "M", REPO, COMMIT)


def test_a_plan_that_was_begun_stands_when_no_hub_tells_of_its_revision() -> None:
    right = Hash("sha256", SHA)
    before = replace(
        a_plan(
            Planned("a", 5, right, ("http://ms/old/a", "http://hf/a")),
            Planned("b", 5, right, ("http://10.0.0.1:1/token/b", "http://hf/b")),
        ),
        revision="v1",
    )
    living = Source("http://ms", listing("modelscope", OTHER, a=(5, right), b=(6, right)), False)
    hubs = ["http://ms", "http://hf"]
    for revision in ("v1", COMMIT):
        one = plan.remembered(before, [living], hubs, REPO, revision)
        assert (one.commit, one.id) == (COMMIT, before.id)
        assert [file.urls for file in one.files] == [
            ("http://ms/modelscope/a", "http://ms/old/a", "http://hf/a"),
            ("http://hf/b",),
        ]
    with pytest.raises(ValueError, match="nobody has b"):
        plan.remembered(before, [living], hubs[:1], REPO, COMMIT)
    for repository, other in ((REPO, OTHER), (REPO, None), ("x/y", COMMIT)):
        with pytest.raises(ValueError, match="it is of"):
            plan.remembered(before, [living], hubs, repository, other)


class Local:
    """A connection to this machine, that keeps why it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def cancelled(self) -> bool:
        return False

    def run(self, command: Command) -> Result:
        self.asked.append(command.why)
        ran = subprocess.run(["sh", "-c", command.script], capture_output=True, timeout=60, check=False)
        return Result(command, ran.returncode, ran.stdout.decode(), ran.stderr.decode(), 0.0)


def test_a_hub_that_is_away_costs_neither_the_fetch_that_was_begun_nor_long_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hub lists the files and does not know the revision; the other one takes connections and ends them."""
    commits = {"modelscope": OTHER, "huggingface": COMMIT}
    offered = {REPO: {"commits": commits, "files": {"config.json": {"text": "{}"}, "m.bin": {"size": 90_000, "seed": 1}}}}
    living = hub_server.serve(offered, "127.0.0.1", 0)
    threading.Thread(target=living.serve_forever, args=(0.05,), daemon=True).start()
    away = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    threading.Thread(target=away.serve_forever, args=(0.05,), daemon=True).start()
    fleet = inventory.load(ROOT / "hosts")
    name, node1 = "qwen3.8-27b-fp8", fleet.hosts["node1"]
    model = fleet.models[name].model_copy(update={"source": REPO, "revision": COMMIT})

    def plan_with(huggingface: int, connection: Any) -> FetchPlan:
        urls = {"modelscope": f"http://127.0.0.1:{living.server_address[1]}/modelscope"}
        urls["huggingface"] = f"http://127.0.0.1:{huggingface}/huggingface"
        one = fleet.model_copy(update={"weights": fleet.weights.model_copy(update={"endpoints": urls})})
        screen = progress.Screen(bars=False)
        return HubQuestions(one, node1, connection, screen).plan(model)

    monkeypatch.setattr(host, "HOME", str(tmp_path))
    before = plan_with(living.server_address[1], Local())
    connection = Local()
    with pytest.raises(Refused, match="no source lists"):
        plan_with(away.server_address[1], connection)
    asked = [why for why in connection.asked if f":{away.server_address[1]}/" in why]
    assert len(asked) == 2, "once more, and not about its default branch as well"
    (tmp_path / name).mkdir()
    (tmp_path / name / "plan").write_text(before.text())
    after = plan_with(away.server_address[1], Local())
    assert (after.id, after.commit) == (before.id, COMMIT)
    for server in (living, away):
        server.shutdown()
        server.server_close()


def test_config_comes_last_and_the_largest_first() -> None:
    one = a_plan(
        *(
            Planned(path, size, Hash("sha256", SHA), ("u",))
            for path, size in (("config.json", 99), ("a", 1), ("b", 5), ("c", 5))
        )
    )
    assert [file.path for file in one.ordered] == ["b", "c", "a", "config.json"]
    head, _, body = one.text(share="http://n1:1/t").partition("\n\n")
    assert "#share\thttp://n1:1/t" in head.split("\n")
    assert body.split("\n")[0] == f"{one.ordered[0].key}\t5\tsha256:{SHA}\tb\tu"


def test_the_same_bytes_keep_their_place_whoever_gives_them() -> None:
    one, other = (Planned("a/m.bin", 5, Hash("sha256", SHA), (url,)) for url in ("http://x", "http://y"))
    assert one.key == other.key
    assert a_plan(one).id == a_plan(other).id
    assert one.key != Planned("b/m.bin", 5, Hash("sha256", SHA)).key != Planned("b/m.bin", 6, Hash("sha256", SHA)).key
