"""Weights come whole or not at all, whatever the hub, the host, the operator and the network do meanwhile."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab.hub import Hub, commit
from lab.hub import server as hub_server
from lab.lab import Lab
from lab.run import PATIENCE, wait_until
from lab.twin import Twin
from tests.twins.site import Ran, Site

TWINS = ()
MIB = 1 << 20
MODEL, SOURCE, FOLDER = "tiny", "lab/tiny", "/data/models/Tiny"
UNIT = f"lodger-fetch-{MODEL}.service"
LARGE = {f"model-{n:05}-of-00008.safetensors": {"size": 3 * MIB + 1000 * n, "seed": n} for n in range(1, 9)}
SMALL = {f"shard {n}/vocab.bin": {"size": 200_000 + n, "seed": 50 + n} for n in range(4)}
TEXTS = {
    "config.json": {"text": '{"model_type": "tiny"}\n'},
    "model.safetensors.index.json": {"text": '{"metadata": {"total_size": 1}}\n'},
    "README.md": {"text": "# 小模型\n"},
    "empty": {"text": ""},
}
FILES: dict[str, Any] = {**LARGE, **SMALL, **TEXTS}
SIZE = sum(hub_server.size_of(file) for file in FILES.values())
REVISION = commit("huggingface", SOURCE)
IN_FLIGHT = 6  # files at a time
BLOCK = 128 * 1024  # what may be on its way of one file, sent in pieces of 16 KiB


@dataclass(frozen=True)
class Shelf:
    """A hub, a host without the model, and the product."""

    site: Site
    hub: Hub
    node1: Twin
    node2: Twin

    def fetch(self, *words: str, host: str = "node1") -> Ran:
        return self.site.ops("fetch", "--host", host, "--model", MODEL, "--json", *words)

    def well(self, *words: str, host: str = "node1") -> Ran:
        ran = self.fetch(*words, host=host)
        assert ran.code == 0, str(ran)
        return ran

    def wrong(self, twin: Twin | None = None, folder: str = FOLDER) -> list[str]:
        """Return what is not as the hub has it, judged on the twin without the product."""
        asked = "cd \"$0\" 2>/dev/null || exit 0; find . -path ./.lodger -prune -o -type f -printf '%P\\n' | while IFS= read -r name; do"
        lines = (
            (twin or self.node1)
            .exec(["sh", "-c", f'{asked} echo "$(sha256sum < "$name" | cut -c1-64) $name"; done', folder])
            .stdout
        )
        there = {name: found for found, _, name in (line.partition(" ") for line in lines.splitlines())}
        return [f"{name} is missing" for name in FILES if name not in there] + [
            f"{name} is wrong" for name, found in there.items() if name in FILES and found != hub_server.sha256(FILES[name])
        ]

    def placed(self) -> list[str]:
        return self.node1.exec(
            f"find {FOLDER} -path {FOLDER}/.lodger -prune -o -type f -print 2>/dev/null || true"
        ).stdout.split()

    def at_work(self) -> bool:
        return self.node1.exec(["systemctl", "is-active", UNIT], check=False).stdout.strip() in {"active", "activating"}

    def sent(self, source: str) -> int:
        return self.hub.sent().get(source, 0)


@pytest.fixture(scope="module")
def standing(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    lab.up()
    site = Site(lab, tmp_path_factory.mktemp("site"))
    commits = {source: commit(source, SOURCE) for source in ("modelscope", "huggingface")}
    lab.hub.offer({SOURCE: {"commits": commits, "files": FILES}})

    def add(fleet: Any) -> None:
        fleet["models"][MODEL] = {"directory": "Tiny", "source": SOURCE, "revision": REVISION}

    site.edit("fleet", add)
    return Shelf(site, lab.hub, lab.twin("node1"), lab.twin("node2"))


@pytest.fixture
def shelf(standing: Shelf) -> Iterator[Shelf]:
    """The hub in good order, and the model nowhere."""
    standing.hub.faults()
    standing.hub.forget()
    yield standing
    for twin in (standing.node1, standing.node2):
        twin.exec(
            f"systemctl stop {UNIT} 2>/dev/null; umount {FOLDER} 2>/dev/null; rm -rf {FOLDER} /var/lib/lodger/fetch/{MODEL}"
        )


def test_weights_are_fetched_once_verified_and_put_right_only_when_asked(shelf: Shelf) -> None:
    shelf.node1.write(f"{FOLDER}/notes.txt", "a colleague's\n")
    ran = shelf.well()
    assert ran.one["outcome"] == "done"
    assert shelf.wrong() == []
    # The preferred hub has another history, and gives the bytes all the same.
    assert shelf.sent("modelscope") == SIZE
    assert shelf.sent("huggingface") == 0
    assert "notes.txt" in ran.err
    assert shelf.node1.exec(["cat", f"{FOLDER}/notes.txt"]).stdout == "a colleague's\n"
    assert (shelf.site.hosts / "models" / MODEL / "config.json").read_text() == TEXTS["config.json"]["text"]
    half = shelf.node1.exec(["ls", "-A", f"{FOLDER}/.lodger"]).stdout.split()
    assert half == ["lock", "manifest"]

    before = shelf.hub.requests()
    config = shelf.site.hosts / "models" / MODEL / "config.json"
    config.write_text('{"_source": "from public figures"}')
    assert shelf.well().one["outcome"] == "satisfied"
    assert shelf.hub.requests() == before, "a second run asks no hub for anything"
    assert config.read_text() == TEXTS["config.json"]["text"], "what was reconstructed gives way to what was published"

    assert shelf.well("--verify").one["outcome"] == "satisfied"
    name = next(iter(LARGE))
    stamp = shelf.node1.exec(["stat", "-c", "%Y", f"{FOLDER}/{name}"]).stdout.strip()
    shelf.node1.exec(
        f"printf x | dd of={FOLDER}/{name} bs=1 seek=1000 conv=notrunc status=none; touch -d @{stamp} {FOLDER}/{name}"
    )
    found = shelf.fetch("--verify")
    assert found.code == 1, str(found)
    assert name in found.one["error"]["cause"], str(found)
    kept = shelf.fetch()
    assert kept.code == 1, str(kept)
    assert "other content" in kept.one["error"]["cause"], str(kept)
    assert shelf.wrong() == [f"{name} is wrong"]
    shelf.well("--replace")
    assert shelf.wrong() == []
    assert shelf.sent("modelscope") == SIZE + LARGE[name]["size"], "only what was wrong came again"


def _link_out(shelf: Shelf) -> None:
    shelf.node1.exec(f"mkdir -p /srv/elsewhere && ln -sfn /srv/elsewhere {FOLDER}")


def _link_inside(shelf: Shelf) -> None:
    shelf.node1.exec(f"mkdir -p {FOLDER} && ln -s /etc/passwd {FOLDER}/config.json")


def _no_room(shelf: Shelf) -> None:
    shelf.node1.exec(f"mkdir -p {FOLDER} && mount -t tmpfs -o size=20m tmpfs {FOLDER}")


REFUSED: dict[str, tuple[Callable[[Shelf], None], str]] = {
    "a name that leaves the folder": (
        lambda shelf: shelf.hub.faults({"kind": "name", "path": "empty", "as": "../../../etc/cron.d/x"}),
        "not to be trusted",
    ),
    "a link out of models_dir": (_link_out, "symbolic link"),
    "a link in the place of a file": (_link_inside, "symbolic link"),
    "no room": (_no_room, "no room"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_known_to_fail_is_refused_before_anything_is_written(case: str, shelf: Shelf) -> None:
    prepare, said = REFUSED[case]
    prepare(shelf)
    ran = shelf.fetch()
    assert ran.code == 3, str(ran)
    error = ran.one["error"]
    assert said in f"{error['what']} {error['cause']}", str(ran)
    assert shelf.sent("modelscope") + shelf.sent("huggingface") == 0
    assert shelf.node1.exec(f"ls -A {FOLDER} 2>/dev/null || true").stdout.split() in ([], ["config.json"])


def test_ten_kills_at_random_moments_cost_little_and_lose_nothing(shelf: Shelf) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)  # noqa: S311  # moments, not secrets
    unhashed = [{"kind": "unhashed", "path": path} for path in (*SMALL, "config.json")]
    shelf.hub.faults(*unhashed, {"kind": "slow", "rate": 2.5 * MIB})
    units = 0
    for kill in range(10):
        process = shelf.site.start("fetch", "--host", "node1", "--model", MODEL)
        time.sleep(0.7 + dice.random() * 1.3)
        if dice.random() < 0.5 and shelf.at_work():
            shelf.node1.exec(["systemctl", "kill", "--signal=KILL", UNIT], check=False)
            units += 1
        process.kill()
        process.communicate()
        if kill == 9:
            shelf.hub.faults(*unhashed)
    shelf.well()
    assert shelf.wrong() == []
    extra = shelf.sent("modelscope") + shelf.sent("huggingface") - SIZE
    assert extra <= units * IN_FLIGHT * BLOCK, f"{extra} bytes came again after {units} kills of the unit, seed {seed}"
    print(f"{extra} bytes came again after {units} kills of the unit")


def test_two_at_once_are_one(shelf: Shelf) -> None:
    shelf.hub.faults({"kind": "slow", "rate": 15 * MIB})
    both = [shelf.site.start("fetch", "--host", "node1", "--model", MODEL) for _ in range(2)]
    ended = [(*process.communicate(timeout=PATIENCE), process.returncode) for process in both]
    assert [code for *_, code in ended] == [0, 0], ended
    assert shelf.wrong() == []
    assert shelf.sent("modelscope") == SIZE


def test_whoever_leaves_can_come_back_or_stop_it(shelf: Shelf) -> None:
    shelf.hub.faults({"kind": "slow", "rate": MIB // 8})
    process = shelf.site.start("fetch", "--host", "node1", "--model", MODEL)
    wait_until(lambda: shelf.sent("modelscope") > 0, "the fetch begins")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert "goes on" in err, err
    assert shelf.at_work()
    assert shelf.well("--cancel").one["outcome"] == "done"
    assert not shelf.at_work()
    assert shelf.placed() == []
    # The hub that knows the revision tells of it no more: what was begun goes on all the same.
    shelf.hub.faults({"kind": "status", "source": "huggingface", "on": "listing", "code": 403})
    shelf.well()
    assert shelf.wrong() == []
    assert shelf.sent("modelscope") <= SIZE + IN_FLIGHT * BLOCK


def test_a_disk_that_fills_up_meanwhile_is_said_and_nothing_is_lost(shelf: Shelf) -> None:
    shelf.node1.exec(f"mkdir -p {FOLDER} && mount -t tmpfs -o size=32m tmpfs {FOLDER}")
    shelf.hub.faults({"kind": "slow", "rate": 3 * MIB})
    process = shelf.site.start("fetch", "--host", "node1", "--model", MODEL)
    wait_until(lambda: shelf.sent("modelscope") > 4 * MIB, "the fetch begins")
    shelf.node1.exec(f"fallocate -l 12M {FOLDER}/colleague")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert "cannot be written" in err, err
    assert "make room" in err, err
    assert shelf.placed() == [f"{FOLDER}/colleague"]
    shelf.node1.exec(["rm", f"{FOLDER}/colleague"])
    before = shelf.sent("modelscope")
    shelf.hub.faults()
    shelf.well()
    assert shelf.wrong() == []
    assert shelf.sent("modelscope") - before < SIZE // 2, "it went on from what was there"


def test_a_host_gives_to_the_next_what_it_has(shelf: Shelf, standing: Shelf) -> None:
    without = shelf.fetch("--from", "node1", host="node2")
    assert without.code == 3, str(without)
    assert "no manifest" in without.one["error"]["cause"], str(without)
    shelf.well()
    before = shelf.hub.requests()
    shelf.well("--from", "node1", host="node2")
    assert shelf.wrong(shelf.node2) == []
    assert shelf.hub.requests() == before, "no hub was asked"
    assert (
        shelf.node1.exec("systemctl list-units --plain --no-legend 'lodger-share-*'; ls /var/lib/lodger/share").stdout.strip()
        == ""
    )
    assert shelf.well(host="node2").one["outcome"] == "satisfied"
