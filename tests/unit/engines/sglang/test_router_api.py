"""Who is behind a pool's routers: read from what a router and a worker really say, and asked with commands a shell can run."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodger.checkout import CODE
from lodger.engines.pool import OtherKey, RouterEntry
from lodger.engines.sglang import router_api
from lodger.engines.sglang.router_api import MUST_MATCH
from lodger.host.facts.base import Fact

RECORDINGS = CODE / "tests/recordings"
ROUTERS = ["http://10.0.0.1:30002", "http://10.0.0.2:30002"]


def test_what_a_router_lists_is_read_from_its_own_words() -> None:
    said = json.dumps(
        {"workers": [{"url": "http://a:1", "is_healthy": True}, {"url": "http://b:1", "is_healthy": False}], "total": 2}
    )
    fact = router_api.rotation_fact(ROUTERS, "")
    assert fact.parse(f"@router {ROUTERS[0]}\n{said}\n@router {ROUTERS[1]}\n\n") == {
        ROUTERS[0]: {"http://a:1": True, "http://b:1": False},
        ROUTERS[1]: None,
    }


@pytest.mark.parametrize("said", ["", "<html>", "[]", '{"workers": 3}', '{"workers": [{}]}', '{"error": "Unauthorized"}'])
def test_what_is_no_list_of_workers_counts_as_no_answer(said: str) -> None:
    assert router_api.rotation_fact(ROUTERS[:1], "").parse(f"@router {ROUTERS[0]}\n{said}\n") == {ROUTERS[0]: None}


def test_a_router_that_asks_for_another_key_is_told_from_one_that_is_away() -> None:
    fact = router_api.rotation_fact(ROUTERS, "/k")
    found = fact.parse(f'@router {ROUTERS[0]}\n{{"error":"Unauthorized"}}\n@code 401\n@router {ROUTERS[1]}\n\n@code 000\n')
    assert isinstance(found[ROUTERS[0]], OtherKey)
    assert found[ROUTERS[1]] is None


def test_a_router_that_was_not_heard_is_not_forgotten() -> None:
    assert router_api.rotation_fact(ROUTERS, "").parse("") == dict.fromkeys(ROUTERS)


def test_only_what_must_be_the_same_is_taken_from_what_a_worker_says(tmp_path: Path) -> None:
    """The snippet runs in a real shell, with a curl that says what the engine was recorded to say, keys and all."""
    (recorded,) = RECORDINGS.rglob("after_server_info.resp")
    body = recorded.read_text().replace('"api_key":null', '"api_key":"sesame"')
    curl = tmp_path / "curl"
    curl.write_text(f"#!/bin/sh\ncat <<'END'\n{body}\nEND\n")
    curl.chmod(0o755)
    fact = router_api.identities_fact(["http://a:1", "http://b:1"], "")
    path = f"{tmp_path}:/usr/bin:/bin"
    text = subprocess.run(["sh", "-c", fact.snippet], capture_output=True, text=True, env={"PATH": path}, check=True).stdout
    assert "sesame" not in text
    found = fact.parse(text)
    assert found["http://a:1"] == found["http://b:1"]
    assert set(MUST_MATCH) <= set(found["http://a:1"])
    assert found["http://a:1"]["served_model_name"] == "qwen3.8-27b"
    assert float(found["http://a:1"]["scheduler_e2e"]) > 0


def test_a_worker_that_asks_for_another_key_is_told_from_one_that_is_away() -> None:
    fact = router_api.identities_fact(["http://a:1", "http://b:1", "http://c:1"], "/k")
    said = '@worker http://a:1\n"http": "401"\n@worker http://b:1\n"http": "000"\n@worker http://c:1\n"version":"1"\n"http": "200"\n'
    found = fact.parse(said)
    assert isinstance(found["http://a:1"], OtherKey)
    assert (found["http://b:1"], found["http://c:1"]) == ({}, {"version": "1"})
    assert not isinstance(found["http://b:1"], OtherKey)


def answering(*codes: int) -> Iterator[str]:
    """Yield the address of a program that answers with these codes, one request after another, and says which key it was sent."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"version": str(self.headers["Authorization"])}).encode()
            self.send_response(left.pop(0))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    left = list(codes)
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_real_curl_sends_the_key_that_is_there_and_says_what_came_of_it(tmp_path: Path) -> None:
    key = tmp_path / "k"
    for url in answering(200, 200, 401, 401):
        identities, rotation = router_api.identities_fact([url], str(key)), router_api.rotation_fact([url], str(key))

        def said(fact: Fact[Any]) -> Any:
            ran = subprocess.run(["sh", "-c", fact.snippet], capture_output=True, text=True, check=True, timeout=20)
            return next(iter(fact.parse(ran.stdout).values()))

        assert said(identities) == {"version": "None"}, "a pool's first key is on no host yet"
        key.write_text("Authorization: Bearer sesame\n")
        assert said(identities) == {"version": "Bearer sesame"}
        assert isinstance(said(identities), OtherKey)
        assert isinstance(said(rotation), OtherKey)
    assert (said(rotation), said(identities)) == (None, {}), "nobody is there any more, which is no failure of the question"


def test_a_header_whose_file_is_missing_is_not_asked_with(tmp_path: Path) -> None:
    """Newer versions of curl end with an error then, and ask nothing."""
    curl = tmp_path / "curl"
    curl.write_text("""#!/bin/sh
for word; do case $word in @*) [ -e "${word#@}" ] || exit 26;; esac; done
echo '"version": "1"'
""")
    curl.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    fact = router_api.identities_fact(["http://a:1"], str(tmp_path / "k"))
    ran = subprocess.run(["sh", "-c", fact.snippet], capture_output=True, text=True, check=True, env=env, timeout=20)
    assert fact.parse(ran.stdout) == {"http://a:1": {"version": "1"}}


def test_the_same_workers_in_another_order_are_the_same_fact() -> None:
    assert router_api.identities_fact(["http://b:1", "http://a:1"], "") == router_api.identities_fact(
        ["http://a:1", "http://b:1"], ""
    )


@pytest.mark.parametrize("name", MUST_MATCH)
def test_each_thing_that_must_be_the_same_is_compared_by_name(name: str) -> None:
    wanted = dict.fromkeys(MUST_MATCH, "1")
    assert router_api.differences(wanted, wanted) == []
    assert router_api.differences({**wanted, name: "2"}, wanted) == [f"{name} 2 instead of 1"]
    assert router_api.differences({}, wanted) == []


@given(st.from_regex(r"https?://[a-z0-9.\[\]:%'\"$ -]{1,30}", fullmatch=True))
def test_a_workers_url_is_one_segment_of_the_routers_path(url: str) -> None:
    script = router_api.leave(RouterEntry("http://r:1", url), "").script
    assert re.search(r"http://r:1/workers/[A-Za-z0-9._~%-]+'?$", script)


def test_a_key_is_a_file_to_curl_and_never_an_argument() -> None:
    entry = RouterEntry("http://r:1", "http://w:1")
    for command in (router_api.leave(entry, "/k"), router_api.join(entry, "/k"), router_api.drained("http://w:1", "/k", 9)):
        assert "-H @/k" in command.script
    assert "-H" not in router_api.leave(entry, "").script


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            [
                '{"loads":[{"num_running_reqs":2,"num_waiting_reqs":1}]}',
                '{"loads":[{"num_running_reqs": 0,"num_waiting_reqs":0}]}',
            ],
            ["3"],
        ),
        ([""], []),
        (["<html>502</html>"], []),
    ],
)
def test_waiting_ends_with_the_last_request_or_with_the_worker(tmp_path: Path, answers: list[str], said: list[str]) -> None:
    for number, answer in enumerate(answers):
        (tmp_path / f"{number}").write_text(answer)
    (tmp_path / "curl").write_text(
        f'#!/bin/sh\nn=$(cat {tmp_path}/n 2>/dev/null || echo 0)\necho $((n+1)) > {tmp_path}/n\ncat "{tmp_path}/$n"\n'
    )
    (tmp_path / "curl").chmod(0o755)
    command = router_api.drained("http://w:1", "", 30)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", command.script], capture_output=True, text=True, env=env, timeout=20, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"{n} requests are still running" for n in said]


def test_waiting_has_an_end_when_requests_have_none(tmp_path: Path) -> None:
    (tmp_path / "curl").write_text("#!/bin/sh\necho '\"num_running_reqs\":1'\n")
    (tmp_path / "curl").chmod(0o755)
    command = router_api.drained("http://w:1", "", 1)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(["sh", "-c", command.script], capture_output=True, env=env, timeout=20, check=False).returncode == 0


def test_an_engine_that_was_not_told_its_weights_version_is_no_stranger_for_that() -> None:
    """One that somebody started by hand serves the pool's model, and says nothing of its revision."""
    assert router_api.differences({"weight_version": "default"}, {"weight_version": "017b9c7a"}) == []
    assert router_api.differences({"weight_version": "0"}, {"weight_version": "017b9c7a"}) != []
