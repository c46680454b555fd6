"""A fetch beside other downloaders, on a link of the same rate and delay; what a kill costs; how fast files are hashed.

The hub of the lab serves 81 files, 2 GB in all. Its rate is shaped with tc (tbf), which counts all that a packet holds, of
which at most 0.956 are a file's; the delay is a relay's. All of them run in the network of the twin. Ours is the whole command,
with SSH, listing, hashing, manifest and the wait for the disk. The hubs' own clients list for themselves; curl and aria2c are
given the URLs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.hub import Hub, commit
from lab.lab import Lab
from lab.run import run
from lab.twin import Twin
from lodger.checkout import ROOT
from lodger.errors import LodgerError
from lodger.terminal import table

MODEL, SOURCE, DIRECTORY = "bench-81", "bench/eighty-one", "Bench-81"
COUNT, TOTAL = 81, 2_000_000_000
DELAY = 0.040  # seconds there and back
_LISTING = 1_000_000  # bytes: more than a listing has
_PORT = 8040  # of the relay, in the hub's container
_CLIENTS = ("modelscope", "huggingface_hub")
_LONGEST = 900.0


def files() -> dict[str, Any]:
    """Return what the hub is to offer: zeros, but for a head that makes each file another one."""
    each = TOTAL // COUNT
    sizes = [each] * (COUNT - 1) + [TOTAL - each * (COUNT - 1)]
    return {
        f"model-{n:05}-of-{COUNT:05}.safetensors": {"head": f"shard {n}", "size": s, "seed": 0} for n, s in enumerate(sizes, 1)
    }


@dataclass(frozen=True)
class Bench:
    """The twin, the hub, and the address at which the hub is asked."""

    lab: Lab
    twin: Twin
    folder: Path
    rate: float

    @property
    def hub(self) -> Hub:
        """The hub of the lab."""
        return self.lab.hub

    def url(self, delayed: bool) -> str:
        """Return the hub's address, through the relay when it is to be far away."""
        return f"{self.hub.url}:{_PORT}" if delayed else self.hub.url

    def file(self, name: str, delayed: bool) -> str:
        """Return the address of a file."""
        return f"{self.url(delayed)}/modelscope/models/{SOURCE}/resolve/master/{name}"

    def inventory(self, delayed: bool) -> Path:
        """Write an inventory of the twins that names this model and this address; return its folder."""
        folder = self.folder / ("far" if delayed else "near")
        if not folder.exists():
            run(["cp", "-a", self.lab.overlay, folder])
            fleet = folder / "fleet.yml"
            text = fleet.read_text().replace(self.hub.url, self.url(delayed))
            entry = f"  {MODEL}: {{directory: {DIRECTORY}, source: {SOURCE}}}\n"
            fleet.write_text(text.replace("\nmodels:\n", f"\nmodels:\n{entry}"))
        return folder

    @property
    def hub_process(self) -> str:
        """The process whose network is the hub's."""
        return run(["docker", "inspect", "-f", "{{.State.Pid}}", f"{self.lab.prefix}-hub"]).stdout.strip()

    def inside(self, *argv: str, environment: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs a program of this machine in the network of the twin."""
        pid = run(["docker", "inspect", "-f", "{{.State.Pid}}", self.twin.container]).stdout.strip()
        return ["nsenter", "-t", pid, "-n", "env", *environment, *argv]


@contextmanager
def shaped(bench: Bench) -> Iterator[None]:
    """Limit what the hub sends, and run the relay, while the block runs."""
    pid = bench.hub_process
    tc = ["nsenter", "-t", pid, "-n", "tc", "qdisc"]
    rate = f"{round(bench.rate * 8e6)}bit"
    run([*tc, "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"])
    relay = [sys.executable, str(ROOT / "bench" / "relay.py"), str(_PORT), "80", str(DELAY / 2)]
    process = subprocess.Popen(["nsenter", "-t", pid, "-n", *relay])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        run([*tc, "del", "dev", "eth0", "root"], check=False)


def clients(folder: Path) -> Path:
    """Install the hubs' own clients into an environment that is thrown away; return its Python."""
    python = folder / "clients" / "bin" / "python"
    run([sys.executable, "-m", "venv", python.parent.parent])
    run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *_CLIENTS], timeout=_LONGEST)
    return python


def _curl(bench: Bench, delayed: bool) -> list[str]:
    words = "".join(f"url = {bench.file(name, delayed)}\noutput = {name}\n" for name in files())
    bench.twin.write("/data/bench/list", words)
    return _in_twin(bench, "cd /data/bench && curl -sS -f -L --parallel --parallel-max 6 --config list")


def _aria2c(bench: Bench, delayed: bool) -> list[str]:
    words = "".join(f"{bench.file(name, delayed)}\n out={name}\n" for name in files())
    bench.twin.write("/data/bench/list", words)
    options = "-q -j 6 -x 4 -s 4 -k 4M --file-allocation=none --allow-overwrite=true"
    return _in_twin(bench, f"cd /data/bench && aria2c {options} -i list")


def _in_twin(bench: Bench, script: str) -> list[str]:
    return ["docker", "exec", bench.twin.container, "sh", "-ec", script]


def _ours(bench: Bench, delayed: bool) -> list[str]:
    hosts = str(bench.inventory(delayed))
    return [sys.executable, "-m", "lodger", "fetch", "--host", bench.twin.name, "--model", MODEL, "--hosts-dir", hosts]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LODGER_HOSTS"}


def _timed(bench: Bench, argv: list[str]) -> tuple[float, float]:
    """Run a program that fetches everything; return the seconds it took, and those from first to last byte on the wire."""
    bench.hub.forget()
    pid, begin = bench.hub_process, time.perf_counter()
    seen = [(0.0, _left(pid))]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=_environment()
    ) as process:
        said = None
        while said is None and seen[-1][0] < _LONGEST:
            with contextlib.suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(timeout=0.05)
            seen.append((time.perf_counter() - begin, _left(pid)))
        process.kill()
    sent = sum(bench.hub.sent().get(name, 0) for name in files())
    if process.returncode != 0 or sent < TOTAL:
        raise LodgerError(f"`{' '.join(argv[:4])} ...` fetched {sent} of {TOTAL} bytes", cause=(said or "").strip()[-300:])
    first = max(at for at, left in seen if left < seen[0][1] + _LISTING)
    last = min(at for at, left in seen if left > seen[-1][1] - _LISTING)
    return seen[-1][0], last - first


def _left(pid: str) -> int:
    """Return the bytes that have left a container, behind what shapes them."""
    (line,) = [line for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines() if line.strip().startswith("eth0:")]
    return int(line.partition(":")[2].split()[8])


def _clean(bench: Bench) -> None:
    target = f"/data/models/{DIRECTORY}"
    bench.twin.exec(f"rm -rf {target} /data/bench /var/lib/lodger/fetch/{MODEL} && mkdir -p /data/bench")
    run(["rm", "-rf", bench.folder / "got"])


def run_all(lab: Lab, name: str, rate: float) -> str:
    """Return the comparison as a table, printed side by side: ours and the others, near and far."""
    twin = lab.twin(name)
    lab.hub.offer({SOURCE: {"commits": {hub: commit(hub, SOURCE) for hub in ("modelscope", "huggingface")}, "files": files()}})
    _hash_once(lab.hub)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(lab, twin, Path(folder), rate)
        python = clients(bench.folder)
        got = str(bench.folder / "got")
        modelscope = f"from modelscope import snapshot_download as get; get({SOURCE!r}, local_dir={got!r})"
        huggingface = f"from huggingface_hub import snapshot_download as get; get({SOURCE!r}, local_dir={got!r})"

        def client(script: str, variable: str, hub: str) -> Callable[[Bench, bool], list[str]]:
            def argv(bench: Bench, delayed: bool) -> list[str]:
                environment = [f"{variable}={bench.url(delayed)}/{hub}", f"HOME={folder}", "HF_HUB_DISABLE_XET=1"]
                return bench.inside(str(python), "-c", script, environment=environment)

            return argv

        contestants: dict[str, Callable[[Bench, bool], list[str]]] = {
            "lodger fetch": _ours,
            "curl, 6 at a time": _curl,
            "aria2c, 6 at a time": _aria2c,
            "modelscope": client(modelscope, "MODELSCOPE_ENDPOINT", "modelscope"),
            "huggingface_hub": client(huggingface, "HF_ENDPOINT", "huggingface"),
        }
        with shaped(bench):
            rows = [_row(bench, what, argv) for what, argv in contestants.items()]
            kill = _kill(bench)
        hashing = _hashing(bench)
        _clean(bench)
    head = ("", "0 ms", "MB/s", "of link", "on the wire", "40 ms", "MB/s", "of link", "on the wire")
    what = "whole commands, and from first to last byte on the wire"
    title = f"{COUNT} files, {TOTAL / 1e9:.0f} GB, a link of {rate:.0f} MB/s; {what}:"
    return "\n".join([title, table([head, *rows]), kill, hashing])


def _hash_once(hub: Hub) -> None:
    """Have the hub work out the hashes that it lists, which a real one knows, before anybody is timed."""
    url = f"{hub.url}/modelscope/api/v1/models/{SOURCE}/repo/files?Revision=master&Recursive=true"
    run(["curl", "-sf", "-o", "/dev/null", url], timeout=_LONGEST)


def _row(bench: Bench, what: str, argv: Callable[[Bench, bool], list[str]]) -> tuple[str, ...]:
    row = [what]
    for delayed in (False, True):
        _clean(bench)
        whole, wire = _timed(bench, argv(bench, delayed))
        speed = TOTAL / whole / 1e6
        row += [f"{whole:.1f} s", f"{speed:.1f}", f"{speed / bench.rate:.2f}", f"{TOTAL / wire / 1e6 / bench.rate:.2f}"]
        sys.stderr.write(f"  {what}, {'40' if delayed else '0'} ms: {whole:.1f} s\n")
    return tuple(row)


def _kill(bench: Bench) -> str:
    """Return what comes again after the unit was killed half way: in all, and of the file of which most came again."""
    _clean(bench)
    bench.hub.forget()
    process = subprocess.Popen(
        _ours(bench, delayed=False), cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    # Near, where nothing is on its way in a relay: what the hub has sent is what the host has, or loses.
    while sum(bench.hub.sent().get(name, 0) for name in files()) < TOTAL // 2:
        if process.poll() is not None:
            raise LodgerError("the fetch ended before it was killed", hint=f"./ops lab fetch --host {bench.twin.name} says why")
        time.sleep(0.1)
    bench.twin.exec(["systemctl", "kill", "--signal=KILL", f"lodger-fetch-{MODEL}.service"])
    if process.wait(_LONGEST) != 0:
        raise LodgerError("the fetch did not survive the kill")
    sent = bench.hub.sent()
    again = {name: sent[name] - file["size"] for name, file in files().items() if sent[name] > file["size"]}
    most = max(again.values(), default=0)
    total = sum(again.values())
    return f"killed half way: {total / 1e6:.1f} MB came again, of {len(again)} files, at most {most / 1e6:.1f} MB of one"


def _hashing(bench: Bench) -> str:
    """Return how fast a verify goes over what was fetched, beside a plain read of the same files."""
    begin = time.perf_counter()
    bench.twin.exec(f"cat /data/models/{DIRECTORY}/*.safetensors > /dev/null", timeout=_LONGEST)
    read = time.perf_counter() - begin
    argv = [*_ours(bench, delayed=False), "--verify", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=_LONGEST, check=False)
    (one,) = json.loads(done.stdout)
    (state,) = one["states"]
    if done.returncode != 0:
        raise LodgerError("what was fetched does not verify", cause=done.stderr.strip()[-300:])
    hashed, plain = TOTAL / state["seconds"] / 1e6, TOTAL / read / 1e6
    return f"hashed at {hashed:.0f} MB/s (--verify); the same files read with cat at {plain:.0f} MB/s"
