"""What a loss costs the pool's clients: a worker is killed, a router killed or restarted, under load, and everything timed.

Asked from outside, over the addresses that clients use and the lab's own door; times in seconds.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from lab.lab import Lab
from lab.load import Load, Report, authorization
from lab.run import LabError, wait_until
from lab.twin import Twin
from lodger import inventory

WARM = 4.0  # seconds of load before anything happens, so that every conversation has a worker that knows it
SHARE = 10.0  # seconds, at least, over which a returned worker's share is counted
_ENOUGH = 4  # requests of each client that make a share worth counting; a busy machine takes longer for them
_TOKENS = 800  # of an answer: long enough that something is always in flight


@dataclass(frozen=True)
class Member:
    """A worker of the pool: its twin, its container, its own address, and the one by which a router knows it."""

    twin: Twin
    container: str
    url: str
    member: str


@dataclass(frozen=True)
class Front:
    """A router: its twin, the address that clients use, where its figures are read inside the twin, and what it asks for."""

    twin: Twin
    url: str
    metrics: str
    key: str = ""

    def healthy(self) -> dict[str, bool]:
        """Return whether this router believes in each of its workers; raises OSError when it does not answer."""
        return {
            worker["url"]: worker["is_healthy"] for worker in json.loads(get(f"{self.url}/workers", key=self.key)[1])["workers"]
        }

    def sent(self) -> dict[str, int]:
        """Return how many requests this router has sent to each worker since it started."""
        text = self.twin.exec(["curl", "-sf", "-m", "10", f"{self.metrics}/metrics"]).stdout
        found = re.findall(r'^sgl_router_processed_requests_total\{worker="([^"]+)"\} (\d+)$', text, re.MULTILINE)
        return {url: int(count) for url, count in found}


@dataclass(frozen=True)
class WorkerLoss:
    """What the death of one worker came to.

    ``in_flight`` is what it was working on when it was killed, ``failed_later`` counts what failed although it was asked when
    the worker was dead already. ``share`` is its part of the requests in the first ``counted`` seconds after it was back,
    ``even`` the part that it would have if all had the same, ``slowest`` the longest whole answer: one sent to the dead first.
    """

    total: int
    failed: int
    failed_later: int
    in_flight: int
    out_after: float
    down_for: float
    back_after: float
    share: float
    counted: float
    even: float
    slowest: float
    load: Report

    def __str__(self) -> str:
        """Return the figures, a line each."""
        return "\n".join(
            [
                f"{self.failed} failed of {self.total}; {self.in_flight} were in flight on the worker that was killed, "
                f"{self.failed_later} of the failed were asked after it was dead",
                f"out of rotation after {self.out_after:.1f} s",
                f"ready again after {self.down_for:.1f} s, back in rotation {self.back_after:.1f} s later",
                f"then {self.share:.0%} of all requests in {self.counted:.0f} s went to it; an even share is {self.even:.0%}",
                f"the slowest whole answer took {self.slowest:.1f} s",
                *str(self.load).splitlines()[1:],
            ]
        )


@dataclass(frozen=True)
class RouterLoss:
    """What the loss of a router came to, for clients that know it alone and for those that know the standby too.

    ``cut`` is how many running answers were lost with it, ``gap`` how long nobody answered at its address, ``waited`` the
    longest time that a client with both addresses spent on tries that failed before the one that did not.
    """

    alone: Report
    both: Report
    cut: int
    gap: float
    waited: float

    def __str__(self) -> str:
        """Return the figures, a line each."""
        return "\n".join(
            [
                f"{self.cut} running answers were cut off",
                f"the router did not answer for {self.gap:.1f} s",
                f"clients that know both addresses waited at most {self.waited:.2f} s for one that answers: {self.both}",
                f"clients that know only this one: {self.alone}",
            ]
        )


def as_json(loss: WorkerLoss | RouterLoss) -> dict[str, Any]:
    """Return the figures for a program."""
    return {
        name: getattr(loss, name).as_json() if isinstance(getattr(loss, name), Report) else value
        for name, value in asdict(loss).items()
    }


def kill_worker(front: Front, victim: Member, clients: int = 16) -> WorkerLoss:
    """Kill a worker's engine with SIGKILL under load and follow it until it is back and has its share."""
    with Load([front.url], clients, tokens=_TOKENS, key=front.key) as load:
        time.sleep(WARM)
        in_flight, killed = kill_engine(victim), time.monotonic()
        wait_until(lambda: not front.healthy().get(victim.member, False), f"{front.url} takes {victim.member} out")
        out = time.monotonic()
        wait_until(lambda: get(f"{victim.url}/health", 25)[0] == 200, f"{victim.url} is ready again")
        ready = time.monotonic()
        wait_until(lambda: front.healthy().get(victim.member, False), f"{front.url} takes {victim.member} back")
        back = time.monotonic()
        before = front.sent()

        def new() -> dict[str, int]:
            return {url: count - before.get(url, 0) for url, count in front.sent().items()}

        time.sleep(SHARE)
        wait_until(lambda: sum(new().values()) >= _ENOUGH * clients, "enough new requests")
        after, counted = new(), time.monotonic() - back
    report = load.report()
    return WorkerLoss(
        total=len(report.answers),
        failed=len(report.failed),
        failed_later=sum(answer.began > killed for answer in report.failed),
        in_flight=in_flight,
        out_after=out - killed,
        down_for=ready - killed,
        back_after=back - ready,
        share=after.get(victim.member, 0) / max(1, sum(after.values())),
        counted=counted,
        even=1 / len(after),
        slowest=max((answer.ended - answer.began for answer in report.answers if not answer.trouble), default=0.0),
        load=report,
    )


def front(lab: Lab, *, standby: bool = False) -> Front:
    """Return the router that clients use, or the one that stands by. Raises LabError when the inventory has none."""
    for name, host in inventory.load(lab.hosts).hosts.items():
        if host.router is not None and host.router.standby == standby:
            twin, router = lab.twin(name), host.router
            return Front(
                twin,
                f"http://{twin.address}:{router.port}",
                f"http://{router.prometheus_listen}:{router.prometheus_port}",
                lab.api_key(router.pool),
            )
    raise LabError(
        f"no host of the inventory has a {'standby ' if standby else ''}router",
        "give it one, see router: in README-ops.md" if not standby else "`router: {..., standby: true}` in a host file",
    )


def member(lab: Lab, before: Front, host: str = "", port: int = 0) -> Member:
    """Return a worker of the pool: of this host and port, or the first one. Raises LabError when there is none."""
    for name, one in inventory.load(lab.hosts).hosts.items():
        for worker in one.workers.values():
            if host in ("", name) and port in (0, worker.port):
                twin = lab.twin(name)
                seen = "127.0.0.1" if twin.name == before.twin.name else twin.address
                return Member(
                    twin,
                    f"lodger-worker-{worker.name}",
                    f"http://{twin.address}:{worker.port}",
                    f"http://{seen}:{worker.port}",
                )
    raise LabError(f"there is no worker on {host or 'any host'}{f' at port {port}' if port else ''}", "look into hosts/")


def lose_router(front: Front, standby: Front, lose: Callable[[Twin], None], clients: int = 16) -> RouterLoss:
    """Let go of a router under load, half of the clients knowing both addresses, and follow it until it answers again."""
    both = Load([front.url, standby.url], clients // 2, tokens=_TOKENS, key=front.key)
    alone = Load([front.url], clients // 2, tokens=_TOKENS, seed=1, key=front.key)
    with both, alone:
        time.sleep(WARM)
        lose(front.twin)
        wait_until(lambda: not _answers(front), f"{front.url} is gone")
        gone = time.monotonic()
        wait_until(lambda: _answers(front), f"{front.url} answers again")
        back = time.monotonic()
        time.sleep(WARM / 2)
    all_of_it = alone.report(), both.report()
    return RouterLoss(*all_of_it, sum(report.cut for report in all_of_it), back - gone, both.report().longest_wait)


def kill_router(twin: Twin) -> None:
    """Kill the router's process with SIGKILL; its unit starts it again."""
    twin.exec(_children("lodger-router"))


def restart_router(twin: Twin) -> None:
    """Restart the router as its owner would: SIGTERM first, running streams end by themselves."""
    twin.exec(["systemctl", "restart", "--no-block", "lodger-router.service"])


def get(url: str, timeout: float = 5, key: str = "") -> tuple[int, str]:
    """Return status and body of a GET; status 0 when nobody answers."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout)
    try:
        connection.request("GET", where.path or "/", headers={"Connection": "close", **authorization(key)})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def _answers(front: Front) -> bool:
    return get(f"{front.url}/readiness", 2)[0] == 200


def kill_engine(member: Member) -> int:
    """Kill an engine with SIGKILL; return how many requests it had received and not finished, by its log of the last minute."""
    log = f"docker logs --since 60s {member.container} 2>&1 | grep -F request."
    said = member.twin.exec(f"{_children(member.container)}; sleep 0.2; {log}", check=False).stdout
    found = re.findall(r'"event": ?"request\.(received|finished)", ?"rid": ?"(\w+)"', said)
    rids = {event: {rid for word, rid in found if word == event} for event in ("received", "finished")}
    return len(rids["received"] - rids["finished"])


def _children(container: str) -> str:
    """Return the script that kills what a container's init has started."""
    return f'kill -9 $(cat /proc/$(docker inspect -f "{{{{.State.Pid}}}}" {container})/task/*/children)'
