"""The host's side of a fetch, templates/fetch.sh, alone: against the lab's hub on the loopback, in a temporary folder."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping

import pytest

from lab.hub import server as hub_server
from tests.unit.weights.support_fetch_script import FILES, LARGE, SIZE, SMALL, Bench, named

HALF = 100_000


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
    assert log[-1].startswith("end\t0\t") and log[-1] != "end\t0\tok", log  # noqa: PT018  one thought
    assert list(elsewhere.iterdir()) == []
