"""The host's side of a fetch, templates/fetch.sh, alone: against the lab's hub on the loopback, in a temporary folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from lab.hub import commit
from lab.hub import server as hub_server
from lodger import facts
from lodger.weights import hub, plan
from lodger.weights.plan import Plan

TEMPLATES = Path(__file__).parent.parent.parent / "templates"
SOURCE = "lab/tiny"
LARGE: dict[str, Any] = {f"model-{n}.safetensors": {"size": 300_000 + 1000 * n, "seed": n} for n in range(1, 9)}
SMALL: dict[str, Any] = {f"shard {n}/vocab.bin": {"size": 70_000 + n, "seed": 50 + n} for n in range(3)}
TEXTS: dict[str, Any] = {"config.json": {"text": "{}\n"}, "README.md": {"text": "# 小模型\n"}, "empty": {"text": ""}}
FILES = {**LARGE, **SMALL, **TEXTS}
SIZE = sum(hub_server.size_of(file) for file in FILES.values())
HALF = 100_000


class Server(hub_server.Server):
    """The lab's hub, which counts connections here."""

    connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@dataclass
class Bench:
    """A hub, a home for the script, a folder for the model, and programs that stand in the way of the real ones."""

    server: Server
    home: Path
    models: Path
    programs: Path

    @property
    def world(self) -> hub_server.World:
        world: hub_server.World = self.server.RequestHandlerClass.world  # type: ignore[attr-defined]
        return world

    @property
    def target(self) -> Path:
        return self.models / "Tiny"

    @property
    def stage(self) -> Path:
        return self.target / ".lodger"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def faults(self, *faults: Mapping[str, object]) -> None:
        self.world.faults = [dict(fault) for fault in faults]

    def plan(self) -> Plan:
        """Return the plan as the product makes it from what both hubs list now."""
        sources = []
        for name, converse in hub.HUBS.items():
            conversation, endpoint = converse(SOURCE, None), f"{self.url}/{name}"
            path = next(conversation)
            while True:
                answer = requests.get(endpoint + path, timeout=10)
                headers = {key.lower(): value for key, value in answer.headers.items()}
                response = hub.Response(answer.status_code, headers, answer.text)
                try:
                    path = conversation.send(response)
                except StopIteration as end:
                    sources.append(plan.Source(endpoint, plan.judged(end.value), exact=True))
                    break
        return plan.agreed(sources, "tiny", str(self.models), "Tiny", SOURCE, None)

    def program(self, name: str, script: str) -> None:
        """Put a program before the one of this name, which it may run as $real."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\nreal={shutil.which(name)}\n{script}\n")
        path.chmod(0o755)

    def run(self, what: Plan | None = None, share: str = "", **environment: str) -> list[str]:
        """Run the script to its end, however that comes; return its log."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "plan").write_text((what or self.plan()).text(share=share))
        (self.home / "log").write_text("")
        subprocess.run(
            ["sh", str(TEMPLATES / "fetch.sh"), str(self.home)],
            start_new_session=True,
            timeout=60,
            check=False,
            env={"PATH": f"{self.programs}:{os.environ['PATH']}", **environment},
        )
        return (self.home / "log").read_text().splitlines()

    def well(self, what: Plan | None = None, share: str = "", **environment: str) -> list[str]:
        log = self.run(what, share, **environment)
        assert log[-1] == "end\t0\tok", "\n".join(log)
        return log

    def wrong(self) -> list[str]:
        """Return what is not in place as the hub has it."""
        there = {path: self.target / path for path in FILES if (self.target / path).is_file()}
        right = {
            path
            for path, file in there.items()
            if hashlib.sha256(file.read_bytes()).hexdigest() == hub_server.sha256(FILES[path])
        }
        return sorted(set(FILES) - right)

    def placed(self) -> list[str]:
        return [
            str(path.relative_to(self.target))
            for path in self.target.rglob("*")
            if path.is_file() and self.stage not in path.parents
        ]

    def sent(self, *sources: str) -> int:
        return sum(self.world.sent[source] for source in sources or ("modelscope", "huggingface"))


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    commits = {source: commit(source, SOURCE) for source in hub.HUBS}
    world = hub_server.World({SOURCE: {"commits": commits, "files": FILES}})
    server = Server(("127.0.0.1", 0), type("Bound", (hub_server.Handler,), {"world": world}))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def bench(served: Server, tmp_path: Path) -> Bench:
    programs = tmp_path / "programs"
    programs.mkdir()
    one = Bench(served, tmp_path / "var" / "tiny", tmp_path / "models", programs)
    one.program("sleep", "exec $real 0")  # how long it waits for a hub is not looked at here
    one.faults()
    one.world.sent.clear()
    served.connections = 0
    return one


def named(log: Sequence[str], word: str, path: str) -> list[str]:
    return [line for line in log if line.startswith(f"{word}\t") and path in line]


# ---------------------------------------------------------------- hubs


def test_a_connection_serves_for_many_files(bench: Bench) -> None:
    what = bench.plan()
    bench.server.connections = 0
    bench.well(what)
    assert bench.wrong() == []
    assert bench.sent("modelscope") == SIZE
    assert bench.server.connections <= 6, f"{len(FILES)} files"
    assert sorted(path.name for path in bench.stage.iterdir()) == ["lock", "manifest"]


def test_without_a_curl_that_serves_many_files_each_comes_by_itself(bench: Bench) -> None:
    bench.program(
        "curl", 'case " $* " in *" --parallel "*) echo "option --parallel: is unknown" >&2; exit 2 ;; esac; exec $real "$@"'
    )
    bench.well()
    assert bench.wrong() == []


def test_a_hub_that_errs_for_a_while_is_borne_with(bench: Bench) -> None:
    one, two, three, four, five, *_ = LARGE
    what = bench.plan()
    bench.faults(
        {"kind": "truncates", "path": one, "after": HALF, "times": 2},
        {"kind": "truncates", "path": two, "after": HALF, "times": 1},
        {"kind": "ignores_range", "path": two},
        {"kind": "corrupts", "path": three, "times": 1},
        {"kind": "status", "path": four, "on": "file", "code": 429, "retry_after": 2, "times": 2},
        {"kind": "status", "path": five, "on": "file", "code": 503, "times": 2},
    )
    log = bench.well(what)
    assert bench.wrong() == []
    assert bench.world.sent[one] == LARGE[one]["size"], "what was there was not asked for again"
    assert bench.world.sent[two] > LARGE[two]["size"], "without ranges it is"
    for path, why in ((two, "cannot go on"), (three, "the hub says"), (four, "HTTP 429"), (five, "HTTP 503")):
        assert any(why in line for line in log if path in line), (path, log)


def test_what_cannot_be_had_is_said_and_nothing_is_half_placed(bench: Bench) -> None:
    names = list(LARGE)
    faults: list[Mapping[str, object]] = [
        {"kind": "corrupts", "path": names[0]},
        {"kind": "longer", "path": names[1], "by": 10},
        {"kind": "endless", "path": names[2]},
        {"kind": "status", "path": names[3], "on": "file", "code": 404},
        {"kind": "lies", "path": names[4], "by": 7},
        {"kind": "lies", "path": names[5], "by": -7},
    ]
    bench.faults(*faults)
    log = bench.run()
    assert log[-1].startswith("end\t0\tnot everything could be fetched"), log
    for path, why in zip(
        names, ("the hub says", "longer than", "longer than", "HTTP 404", "ends", "longer than"), strict=False
    ):
        assert any(why in line for line in named(log, "error", path)), (path, log)
    assert bench.placed() == []
    before = bench.sent()
    bench.faults()
    bench.well()
    assert bench.wrong() == []
    assert bench.sent() - before <= sum(LARGE[path]["size"] for path in names[:6])


def test_another_hub_goes_on_with_what_the_first_one_gave(bench: Bench) -> None:
    what = bench.plan()
    bench.faults(
        *({"kind": "truncates", "source": "modelscope", "path": name, "after": HALF, "times": 1} for name in LARGE),
        *({"kind": "status", "source": "modelscope", "on": "file", "path": name, "code": 502, "times": 9} for name in SMALL),
    )
    bench.well(what)
    assert bench.wrong() == []
    assert bench.sent() == SIZE
    assert bench.sent("huggingface") >= sum(file["size"] for file in SMALL.values())


def test_what_came_is_verified_while_the_rest_comes_and_the_lock_is_held_until_the_end(bench: Bench) -> None:
    what, late = bench.plan(), next(iter(LARGE))
    bench.faults({"kind": "slow", "path": late, "rate": 200_000})
    fetch = threading.Thread(target=bench.run, args=(what,))
    fetch.start()
    log, end = bench.home / "log", time.monotonic() + 30
    while not log.exists() or "done\t" not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert bench.world.sent[late] < LARGE[late]["size"]
    waited = subprocess.run(
        ["flock", "-s", "-w", "30", bench.home / "lock", "tail", "-n", "1", log], capture_output=True, check=True
    )
    assert waited.stdout == b"end\t0\tok\n"
    fetch.join()
    assert bench.wrong() == []


# ---------------------------------------------------------------- a folder that is somebody else's


def test_what_somebody_else_has_put_where_we_work_is_not_written_through(bench: Bench) -> None:
    victim = bench.models / "passwd"
    what = bench.plan()
    bench.stage.mkdir(parents=True, mode=0o755)
    victim.write_text("root\n")
    for name in ("lock", "boot", "adopted", "manifest.new", "paths", *(f"{file.key}.part" for file in what.files)):
        (bench.stage / name).symlink_to(victim)
    log = bench.run(what)
    assert "is not ours" in log[-1], log
    assert victim.read_text() == "root\n"
    assert bench.sent() == 0


def test_a_folder_of_another_user_is_not_ours_whatever_its_mode(bench: Bench) -> None:
    bench.stage.mkdir(parents=True, mode=0o700)
    bench.program("id", "echo 12345")
    log = bench.run()
    assert "is not ours" in log[-1], log
    assert list(bench.stage.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o777])
def test_what_somebody_fetched_into_a_folder_of_his_own_is_kept(bench: Bench, mode: int) -> None:
    bench.target.mkdir(parents=True)
    bench.target.chmod(mode)
    name = next(iter(LARGE))
    (bench.target / name).write_bytes(
        b"".join(
            hub_server.body(LARGE[name], at, min(4096, LARGE[name]["size"] - at)) for at in range(0, LARGE[name]["size"], 4096)
        )
    )
    bench.well()
    assert bench.wrong() == []
    assert bench.sent() == SIZE - LARGE[name]["size"]


SWAPPED = {"where we work": ".lodger", "where a file belongs": "shard 1"}


@pytest.mark.parametrize("case", SWAPPED)
def test_a_link_that_is_put_in_place_while_we_work_leads_nowhere(bench: Bench, case: str) -> None:
    elsewhere, name = bench.models / "elsewhere", SWAPPED[case]
    elsewhere.mkdir(parents=True, mode=0o700)
    swap = f'rmdir "{bench.target}/{name}" && ln -s "{elsewhere}" "{bench.target}/{name}"'
    bench.program("mkdir", f'$real "$@" || exit; for last; do :; done; case ${{last%/}} in */"{name}") {swap} ;; esac')
    log = bench.run()
    assert log[-1].startswith("end\t0\t") and log[-1] != "end\t0\tok", log  # noqa: PT018
    assert list(elsewhere.iterdir()) == []


# ---------------------------------------------------------------- files that the hub gives no hash for


def unhashed(bench: Bench) -> Plan:
    """Return the plan when the hubs give no hash for some files."""
    bench.faults(*({"kind": "unhashed", "path": path} for path in (*SMALL, "config.json")))
    return bench.plan()


@pytest.mark.parametrize("kill", [10, 13])
def test_killed_while_it_places_it_knows_what_it_placed(bench: Bench, kill: int) -> None:
    what = unhashed(bench)
    count = bench.home.parent / "count"
    strike = f"echo >> {count}; [ $(wc -l < {count}) != {kill} ] || kill -KILL 0"
    bench.program("mv", f'case $3 in /*.ok) $real "$@"; {strike}; exit ;; esac; exec $real "$@"')
    log = bench.run(what)
    assert not log[-1].startswith("end"), log
    assert len(bench.placed()) == kill
    assert folder(bench).mixed, "no deploy takes it"
    bench.well(what)
    assert bench.wrong() == []
    assert bench.sent() == SIZE, "nothing came again"
    assert (folder(bench).mixed, folder(bench).lost) == (False, 0)


def test_killed_with_the_manifest_written_it_has_left_nothing_for_a_second_run(bench: Bench) -> None:
    """It finds everything there, and would begin nothing that takes the mark away."""
    bench.program("mv", '$real "$@"; case $2 in manifest.new) kill -KILL 0 ;; esac')
    log = bench.run()
    assert not log[-1].startswith("end"), log
    assert (folder(bench).mixed, folder(bench).lost) == (False, 0)


def folder(bench: Bench) -> facts.Folder:
    """Return the model's folder as a deploy reads it."""
    fact = facts.folder_fact(str(bench.target))
    done = subprocess.run(["sh", "-c", facts.script([fact])], capture_output=True, text=True, check=True, timeout=20)
    return facts.parse(done.stdout)[fact]


def test_a_file_of_somebody_else_with_no_hash_cannot_be_proved(bench: Bench) -> None:
    what = unhashed(bench)
    bench.target.mkdir(parents=True)
    (bench.target / "config.json").write_text("[]\n")
    log = bench.run(what)
    assert named(log, "error", "config.json is there and cannot be proved"), log
    assert "other content" not in "".join(log)
    assert (bench.target / "config.json").read_text() == "[]\n"


# ---------------------------------------------------------------- from another host


class Proxy(BaseHTTPRequestHandler):
    """Notes what it is asked for, and gives nothing."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(502)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def test_what_another_host_serves_comes_past_the_proxy(bench: Bench) -> None:
    bench.well()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Noting", (Proxy,), {"asked": []}))
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    share = subprocess.Popen(
        [sys.executable, str(TEMPLATES / "share.py"), str(bench.target), "secret", "30"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert share.stdin is not None
    assert share.stdout is not None
    share.stdin.write("\n".join([*FILES, ""]))
    share.stdin.close()
    url = f"http://127.0.0.1:{share.stdout.readline().strip()}/secret"
    taker = Bench(bench.server, bench.home.parent / "next", bench.models / "next", bench.programs)
    what = taker.plan().taken_from(url)
    address = f"http://127.0.0.1:{proxy.server_address[1]}"
    taker.well(what, url, http_proxy=address, all_proxy=address)
    assert taker.wrong() == []
    assert proxy.RequestHandlerClass.asked == []  # type: ignore[attr-defined]
    assert share.wait(10) == 0, "it was told that all is there"
    proxy.shutdown()
    proxy.server_close()
