"""Listings, names, plans, manifests and progress of a fetch: what is read, what is believed, what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socketserver
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.hub import server as hub_server
from lodger import inventory
from lodger.capacity import checkpoint
from lodger.checkout import ROOT
from lodger.errors import Refused
from lodger.host.command import Command, Result
from lodger.inventory import Model
from lodger.run.session import _NoLog
from lodger.weights import host, hub, model_files, plan, progress
from lodger.weights.fetch import Fetch, FetchOptions
from lodger.weights.hub import Hash, HubError, Listed, Listing, Response
from lodger.weights.plan import FetchManifest, FetchPlan, FoundFolder, Planned, Source

SHA, SHA1 = "a" * 64, "b" * 40
COMMIT, OTHER = "c" * 40, "d" * 40
REPO = "Qwen/Qwen3.8-27B-FP8"


def answers(conversation: hub.Conversation, *responses: Response) -> tuple[Listing, list[str]]:
    """Return what a conversation comes to when it gets these responses, and what it asked for."""
    asked = [next(conversation)]
    for response in responses:
        try:
            asked.append(conversation.send(response))
        except StopIteration as end:
            return end.value, asked
    raise AssertionError(f"it goes on asking: {asked[-1]}")


def said(body: object, status: int = 200, **headers: str) -> Response:
    return Response(status, headers, body if isinstance(body, str) else json.dumps(body))


def entry(path: str = "config.json", **changes: Any) -> dict[str, Any]:
    return {"Path": path, "Name": path, "Type": "blob", "Size": 7, "Sha256": SHA, "Revision": COMMIT, "IsLFS": False, **changes}


def scope(*entries: Mapping[str, Any], **latest: str) -> Response:
    data = {"Files": list(entries), "IsVisual": False, "LatestCommitter": latest}
    return said({"Code": 200, "Success": True, "Data": data})


# ---------------------------------------------------------------- hubs


def test_modelscope_names_files_hashes_and_the_commit_of_each() -> None:
    response = scope(
        entry("sub", Type="tree"),
        entry("a b/模型.bin", Sha256=SHA.upper()),
        entry("x", Sha256="", Revision=""),
        ShortId="cccccccc",
    )
    listing, asked = answers(hub.modelscope(REPO, None), response)
    assert asked == [f"/api/v1/models/{REPO}/repo/files?Revision=master&Recursive=true"]
    assert listing.commit == COMMIT
    base = f"/api/v1/models/{REPO}/repo"
    assert listing.files == (
        Listed("a b/模型.bin", 7, Hash("sha256", SHA), f"{base}?Revision={COMMIT}&FilePath=a+b%2F%E6%A8%A1%E5%9E%8B.bin"),
        Listed("x", 7, Hash("none"), f"{base}?Revision=master&FilePath=x"),
    )


@pytest.mark.parametrize(
    ("asked", "latest", "commit"),
    [
        (OTHER, {"Id": "", "ShortId": OTHER[:8]}, OTHER),
        (None, {"Id": OTHER, "ShortId": OTHER[:8]}, OTHER),
        (None, {"ShortId": "12345678"}, "12345678"),
        (None, {}, COMMIT),
        ("v1.0", {}, COMMIT),
    ],
)
def test_modelscope_tells_as_much_of_the_commit_as_it_knows(asked: str | None, latest: dict[str, str], commit: str) -> None:
    listing, _ = answers(hub.modelscope(REPO, asked), scope(entry(), **latest))
    assert listing.commit == commit


def test_a_listing_that_stops_at_three_thousand_is_not_believed() -> None:
    whole = scope(*(entry(f"f{n}") for n in range(2999)))
    assert len(answers(hub.modelscope(REPO, None), whole)[0].files) == 2999
    with pytest.raises(HubError, match="cut off"):
        answers(hub.modelscope(REPO, None), scope(*(entry(f"f{n}") for n in range(3000))))


def test_hugging_face_resolves_the_branch_first_and_reads_every_page() -> None:
    large = {
        "type": "file",
        "path": "m.safetensors",
        "size": 9,
        "oid": SHA1,
        "lfs": {"oid": SHA, "size": 9, "pointerSize": 135},
    }
    small = {"type": "file", "path": "sub/c d.json", "size": 3, "oid": SHA1}
    link = '<https://huggingface.co/api/models/x/tree/y?recursive=true&expand=false&cursor=Zm8%3D>; rel="next"'
    conversation = hub.huggingface(REPO, "main")
    listing, asked = answers(
        conversation, said({"sha": COMMIT}), said([large, {"type": "directory", "path": "sub"}], link=link), said([small])
    )
    tree = f"/api/models/{REPO}/tree/{COMMIT}?recursive=true&expand=false"
    assert asked == [f"/api/models/{REPO}/revision/main", tree, f"{tree}&cursor=Zm8%3D"]
    assert listing == Listing(
        "huggingface",
        COMMIT,
        (
            Listed("m.safetensors", 9, Hash("sha256", SHA), f"/{REPO}/resolve/{COMMIT}/m.safetensors"),
            Listed("sub/c d.json", 3, Hash("git", SHA1), f"/{REPO}/resolve/{COMMIT}/sub/c%20d.json"),
        ),
    )


def test_hugging_face_is_not_asked_what_commit_a_commit_is() -> None:
    listing, asked = answers(hub.huggingface(REPO, COMMIT), said([]))
    assert (listing.commit, len(asked)) == (COMMIT, 1)


def test_a_listing_without_end_is_given_up() -> None:
    page = said([], link='<http://x/?cursor=1>; rel="next"')
    with pytest.raises(HubError, match="has no end"):
        answers(hub.huggingface(REPO, None), said({"sha": COMMIT}), *[page] * 200)


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (said("no such repo", 404), "has no"),
        (said("slow down", 429), "gives no listing"),
        (said("<html>"), "no JSON"),
        (said([]), "not what it should be"),
        (said({"Data": {}}), "not what it should be"),
        (said({"Data": {"Files": ["x"]}}), "not what it should be"),
        (scope(entry(Size=-1)), "size"),
        (scope(entry(Size=True)), "size"),
        (scope(entry(Size="7")), "size"),
        (scope(entry(Size=1 << 60)), "size"),
    ],
)
def test_what_a_hub_should_not_say_is_an_error(response: Response, what: str) -> None:
    with pytest.raises(HubError, match=what):
        answers(hub.modelscope(REPO, None), response)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (SHA.upper(), Hash("sha256", SHA)),
        (SHA1, Hash("git", SHA1)),
        *((given, Hash("none")) for given in ("", None, 7, "abc", "g" * 64, SHA + "\n")),
    ],
)
def test_a_hash_that_is_none_leaves_its_file_unproved_and_no_more(given: object, read: Hash) -> None:
    listing, _ = answers(hub.modelscope(REPO, None), scope(entry(), entry("x", Sha256=given)))
    assert [file.hash for file in listing.files] == [Hash("sha256", SHA), read]
    tree = said([{"type": "file", "path": "x", "size": 3, "oid": given}])
    assert answers(hub.huggingface(REPO, COMMIT), tree)[0].files[0].hash == read


def test_the_last_response_counts_when_curl_followed_a_redirect() -> None:
    text = 'HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\nHTTP/2 200 \r\nLink: <y>; rel="next"\r\nX: a: b\r\n\r\n{}\r\n\r\nrest'
    assert hub.parse_response(text) == Response(200, {"link": '<y>; rel="next"', "x": "a: b"}, "{}\r\n\r\nrest")
    for nothing in ("", "curl: (7)", "HTTP/1.1 200 OK\r\n"):
        with pytest.raises(HubError):
            host.answered(0, nothing, "")
    with pytest.raises(HubError, match="does not answer") as caught:
        host.answered(7, "", "curl: (7) refused\n")
    assert caught.value.cause == "curl: (7) refused"


# ---------------------------------------------------------------- names


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
        assert pure.parts[:3] == ("/", "models", "M") and len(pure.parts) > 3  # noqa: PT018
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


# ---------------------------------------------------------------- plans


def a_plan(*files: Planned) -> FetchPlan:
    return FetchPlan("m", "/data/models", "M", "huggingface", REPO, "", COMMIT, files)


def listing(source: str, commit: str, **files: tuple[int, Hash]) -> Listing:
    return Listing(
        source, commit, tuple(Listed(path, size, hash_, f"/{source}/{path}") for path, (size, hash_) in files.items())
    )


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
        return Fetch(one, node1, connection, _NoLog(), screen, FetchOptions(), None)._from_hubs(model)

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


# ---------------------------------------------------------------- what is on the host

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


# ---------------------------------------------------------------- what is kept beside the inventory

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
    (folder / "config.json").write_text((Path(__file__).parents[2] / "hosts/models" / folder.name / "config.json").read_text())
    known = checkpoint.read(tmp_path, folder.name)
    assert known is not None
    assert known.weight_bytes == 3_848_000_000
    assert json.loads(model_files.index(a_plan(Planned("model.bin", 5, Hash("none")))))["metadata"]["total_size"] == 5


# ---------------------------------------------------------------- progress


def test_the_log_of_the_host_is_followed() -> None:
    said = progress.listen(progress.Said(), ["begin\t0\tx", "wait\t0\tanother", "what is this", ""])
    assert said.waiting
    said = progress.listen(said, ["kept\t1\t", "get\t2\t", "retry\t2\tb: HTTP 503", "error\t3\tc: no", "note\t0\tn"])
    assert (said.doing, said.news, said.errors, said.end) == ({1: "kept", 2: "get"}, ("b: HTTP 503", "n"), ("c: no",), "")
    assert not said.waiting
    assert progress.listen(said, ["end\t0\tok"]).end == "ok"
    assert progress.listen(said, ["begin\t0\tx", "get\t2\t"]) == progress.Said({2: "get"})


def test_bytes_are_counted_where_they_are() -> None:
    one = a_plan(*(Planned(path, 100 - n, Hash("sha256", SHA)) for n, path in enumerate("abcde")))
    keys = [file.key for file in one.ordered]
    glimpse = host.parse_poll(
        f"active\nhalf\t40\t{keys[1]}.part\nhalf\t98\t{keys[2]}.ok\nread\t7\t/data/models/M/d\nread\tx\ty\n@@lodger-log\nget\t2\t\nget"
    )
    assert glimpse.lines == ("get\t2\t",)
    assert glimpse.alive
    said = progress.Said({1: "kept", 2: "get", 3: "get", 4: "check"})
    assert [(size, at) for _, size, at in progress.arrived(one, said, glimpse)] == [
        (100, "kept"),
        (40, "get"),
        (98, "get"),
        (7, "check"),
        (0, ""),
    ]
    assert not host.parse_poll("inactive\n@@lodger-log\n").alive


def test_a_bar_stands_for_each_file_under_way_and_one_for_all() -> None:
    one = a_plan(Planned("a", 100, Hash("sha256", SHA)), Planned("b", 50, Hash("sha256", SHA)))
    screen = progress.Screen(bars=True)
    try:
        key = one.ordered[0].key
        screen.show(
            "node1",
            one,
            progress.Said({1: "get", 2: "check"}),
            host.Glimpse(True, {f"{key}.part": 40}, {"/data/models/M/b": 9}, ()),
        )
        assert screen.bars() == {"node1  m": (49, 150), "  a": (40, 100), "  b (hashing)": (9, 50)}
        screen.show("node1", one, progress.Said({1: "done", 2: "get"}), host.Glimpse(True, {}, {}, ()))
        assert screen.bars() == {"node1  m": (100, 150), "  b": (0, 50)}
    finally:
        screen.close()


def test_rate_and_time_left() -> None:
    rate = progress.Rate()
    assert rate.after(0.0, 0) == 0
    assert rate.after(2.0, 100) == 50
    assert rate.after(20.0, 1000) == 50, "over the last seconds"
    assert rate.after(21.0, 500) >= 0, "what was thrown away is no speed"
    assert (
        progress.line("m", 50 * 10**9, 100 * 10**9, 10e6, 1, 3)
        == "m: 50%, 50.00 of 100.00 GB, 1 of 3 files, 10.0 MB/s, 1:23:20 left"
    )
    assert progress.line("m", 0, 0, 0, 0, 0).endswith("100%, 0.00 of 0.00 GB, 0 of 0 files, 0.0 MB/s, ? left")
