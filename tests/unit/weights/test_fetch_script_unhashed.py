"""The host's side of a fetch, templates/fetch.sh, alone: against the lab's hub on the loopback, in a temporary folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lodger.host import facts
from lodger.weights.plan import FetchPlan
from tests.unit.weights.support_fetch_script import FILES, SIZE, SMALL, TEMPLATES, Bench, named


def unhashed(bench: Bench) -> FetchPlan:
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
