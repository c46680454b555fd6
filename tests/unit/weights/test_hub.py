"""Listings, names, plans, manifests and progress of a fetch: what is read, what is believed, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lodger.weights import host, hub
from lodger.weights.hub import Hash, HubError, Listed, Listing, Response
from tests.unit.weights.support_weights import COMMIT, OTHER, REPO, SHA, SHA1, said


def answers(conversation: hub.Conversation, *responses: Response) -> tuple[Listing, list[str]]:
    """Return what a conversation comes to when it gets these responses, and what it asked for."""
    asked = [next(conversation)]
    for response in responses:
        try:
            asked.append(conversation.send(response))
        except StopIteration as end:
            return end.value, asked
    raise AssertionError(f"it goes on asking: {asked[-1]}")


def entry(path: str = "config.json", **changes: Any) -> dict[str, Any]:
    return {"Path": path, "Name": path, "Type": "blob", "Size": 7, "Sha256": SHA, "Revision": COMMIT, "IsLFS": False, **changes}


def scope(*entries: Mapping[str, Any], **latest: str) -> Response:
    data = {"Files": list(entries), "IsVisual": False, "LatestCommitter": latest}
    return said({"Code": 200, "Success": True, "Data": data})


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
        (said([]), "the form of the hub's listing is not known"),
        (said({"Data": {}}), "the form of the hub's listing is not known"),
        (said({"Data": {"Files": ["x"]}}), "the form of the hub's listing is not known"),
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
