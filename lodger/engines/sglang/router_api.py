"""Who is behind a pool's routers, read from any host of the pool: what each router lists, and what each worker serves.

Shapes and behaviour are those of sglang-router 0.2.4, tried with the real program: a worker that is taken off the list
gets no new request while its running streams go on to their end; putting it back takes less than a second; putting it
there twice is the same as once. A worker that the router still waits for is on no list, and stays awaited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote as percent

from lodger.engines.client import Client, dig
from lodger.engines.pool import Identities, OtherKey, RouterEntry, RouterList
from lodger.host.command import Command, quote
from lodger.host.facts.base import Fact

# What must be the same for a request to get the same answer from any worker of a pool, as /server_info names it.
MUST_MATCH = (
    "served_model_name",
    "model_path",
    "weight_version",
    "tokenizer_path",
    "context_length",
    "reasoning_parser",
    "tool_call_parser",
    "version",
)


def _curl(*words: str, key: str, seconds: int) -> str:
    # The key goes from the file to the wire: an argument would stand in the list of processes. A pool's first key is on no
    # host yet, and curl asks nothing at all with a header whose file is missing.
    header = f"$([ ! -e {key} ] || echo -H @{key}) " if key else ""
    options = ["curl", "-s", "--noproxy", "*", "--connect-timeout", "2", "--max-time", str(seconds)]
    return f"{quote(options)} {header}{quote(words)}"


def rotation_fact(routers: Sequence[str], key: str) -> Fact[RouterList]:
    """Return the fact what each of ``routers`` (base URLs) lists; ``key`` is the file of the header, "" for none."""
    wanted = tuple(dict.fromkeys(routers))

    def parse(text: str) -> RouterList:
        found: dict[str, Mapping[str, bool] | None] = dict.fromkeys(wanted)
        for block in text.split("@router ")[1:]:
            url, _, body = block.partition("\n")
            found[url] = _listed(body)
        return found

    ask = ("-w", "\\n@code %{http_code}\\n")
    lines = [
        f"printf '@router %s\\n' {quote([url])}; {_curl(*ask, f'{url}/workers', key=key, seconds=5)}; echo" for url in wanted
    ]
    return Fact(f"rotation {' '.join(wanted)}", "\n".join(lines) or "true", parse, takes=10)


def _listed(said: str) -> Mapping[str, bool] | None:
    body, _, code = said.partition("\n@code ")
    if code.strip() == "401":
        return OtherKey()
    try:
        return {worker["url"]: bool(worker["is_healthy"]) for worker in json.loads(body)["workers"]}
    except (ValueError, KeyError, TypeError):
        return None  # no router, or another program on its port


def identities_fact(urls: Sequence[str], key: str) -> Fact[Identities]:
    """Return the fact what the worker at each of ``urls`` serves.

    Only the fields of ``MUST_MATCH`` leave the host: the rest of /server_info holds the server's keys.
    """
    wanted = tuple(sorted(set(urls)))  # in any order the same fact, read once
    ask = [
        f"{{ said=$({describe_script(url, key)}); printf '@worker %s\\n%s\\n' {quote([url])} \"$said\"; }} &" for url in wanted
    ]

    def parse(text: str) -> Identities:
        found: dict[str, Mapping[str, str]] = {url: {} for url in wanted}
        for block in text.split("@worker ")[1:]:
            url, _, said = block.partition("\n")
            fields: dict[str, str] = {}
            for name, value in re.findall(r'^"(\w+)": ?(.*)$', said, re.MULTILINE):
                fields.setdefault(name, value.strip('"'))  # an inner object repeats some of them
            found[url] = OtherKey() if fields.pop("http", "") == "401" else fields
        return found

    return Fact(f"identities {' '.join(wanted)}", "\n".join([*ask, "wait"]), parse, takes=25)


def describe_script(url: str, key: str) -> str:
    """Return sh that prints what the worker at ``url`` says of itself, a field a line; the HTTP code is the field `http`."""
    names = "|".join((*MUST_MATCH, "scheduler_e2e", "http"))
    only = quote(["grep", "-oE", f'"({names})": ?("[^"]*"|[^,}}]*)'])
    ask = ("-w", '\\n"http": "%{http_code}"\\n', f"{url}/server_info")
    return f"{_curl(*ask, key=key, seconds=5)} | {only}"


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return where ``found`` serves something else than ``wanted``; what either does not say is not compared.

    An engine that was not told the version of its weights says `default`.
    """
    unsaid = {"weight_version": "default"}
    return [
        f"{name} {found[name]} instead of {wanted[name]}"
        for name in MUST_MATCH
        if name in found and name in wanted and found[name] not in {wanted[name], unsaid.get(name)}
    ]


# The same question in sh, for a timer that is alone on its host. A field that an inner object repeats counts once.
_DIFFERS = r"""awk '
        function take(line) { name = value = line; sub(/:.*/, "", name); sub(/^[^:]*: */, "", value) }
        BEGIN {
            count = split(ENVIRON["own"], lines, "\n")
            for (i = 1; i <= count; i++) { take(lines[i]); if (!(name in said)) said[name] = value }
        }
        {
            take($0)
            if (seen[name]++ || !(name in said) || name ~ /scheduler_e2e/ || value ~ /"000"/) next
            if (name ~ /weight_version/ && (value ~ /"default"/ || said[name] ~ /"default"/)) next
            if (value != said[name]) other = 1
        }
        END { exit !other }'"""


def differs_script() -> str:
    """Return a sh command: whether a worker, whose description it reads, serves something else than ``$own`` says."""
    return _DIFFERS


def start_s(said: Mapping[str, str]) -> float | None:
    """Return how long the last start of a worker took (s), by what it says of itself; None where it does not say."""
    return float(said["scheduler_e2e"]) if said.get("scheduler_e2e") else None


def leave(entry: RouterEntry, key: str) -> Command:
    """Return the command that takes a worker off a router's list; its running streams go on."""
    url = f"{entry.router}/workers/{percent(entry.worker, safe='')}"
    return Command(_curl("-f", "-X", "DELETE", url, key=key, seconds=10), why=f"take {entry.worker} out of {entry.router}")


def join(entry: RouterEntry, key: str) -> Command:
    """Return the command that puts a worker on a router's list."""
    body = json.dumps({"url": entry.worker})
    words = ("-f", "-X", "POST", "-H", "Content-Type: application/json", "-d", body, f"{entry.router}/workers")
    return Command(_curl(*words, key=key, seconds=10), why=f"put {entry.worker} into {entry.router}")


def drained(url: str, key: str, patience: int) -> Command:
    """Return the command that waits until the worker at ``url`` has no request left, ``patience`` seconds at most.

    A worker that does not answer has none. It prints how many are left; after its patience it ends well too, since the
    stop that follows lets running requests end.
    """
    loads = _curl(f"{url}/v1/loads?include=core", key=key, seconds=5)
    count = """grep -oE '"num_(running|waiting)_reqs": ?[0-9]+' | awk -F: '{n += $2} END {print n + 0}'"""
    script = f"""end=$(($(date +%s) + {patience}))
while left=$({loads} | {count}); [ "$left" -gt 0 ]; do
    echo "$left requests are still running"
    [ "$(date +%s)" -lt "$end" ] || break
    sleep 1
done"""
    return Command(script, why="its running requests end", timeout=patience + 60)


def healthy(client: Client) -> int:
    """Return how many workers a router believes in."""
    return sum(bool(dig(one, "is_healthy")) for one in dig(client.get("/workers").body, "workers") or [])
