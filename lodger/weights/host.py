"""The host's side of a fetch: what is read of it, and the commands that start, follow and end it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lodger.checkout import CODE
from lodger.host import paths
from lodger.host.command import Command, quote
from lodger.host.facts.base import Fact
from lodger.inventory import Model
from lodger.weights import hub
from lodger.weights.plan import OWN, FetchManifest, FetchPlan, FoundFolder, parse_found, parse_manifest

_TEMPLATES = CODE / "templates"
HOME = paths.FETCH
LONGEST = 2 * 86400  # seconds after which a fetch, or the host that serves one, is ended whatever it does
IDLE = 300  # seconds without a request after which a host that serves another ends
LISTING = 32 * 1024 * 1024  # bytes of a listing that are read
_MARK = "@@lodger-log"
_HALF = "\\( -name '*.part' -o -name '*.ok' \\)"


def unit(model: str) -> str:
    """Return the unit that fetches a model. No deploy waits for it, and it waits for no deploy."""
    return f"lodger-fetch-{model}"


@dataclass(frozen=True)
class WeightsFacts:
    """The facts of one model on one host."""

    found: Fact[FoundFolder]
    manifest: Fact[FetchManifest | None]
    running: Fact[str]


def reading(root: str, model: Model) -> WeightsFacts:
    """Return the facts of a model: its folder, its manifest, and the plan id of the fetch that runs ("" for none)."""
    target = f"{root}/{model.directory}"
    found = f"""target=$(realpath -m -- {quote([target])}); echo "$target"; realpath -m -- {quote([root])}
dir=$target; while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
df -Pk "$dir" | awk 'NR == 2 {{print $4}}'
[ -d "$target" ] || exit 0
find "$target" -mindepth 1 -path "$target/{OWN}" -prune -o -printf 'file\\t%y\\t%s\\t%T@\\t%P\\n'
stat --printf 'own\\t%u %a %F\\n' "$target/{OWN}" 2> /dev/null
[ ! -d "$target/{OWN}" ] || find "$target/{OWN}" -maxdepth 1 {_HALF} -printf 'half\\t%s\\t%f\\n'"""
    busy = f"""case $(systemctl is-active {unit(model.name)}) in active | activating | deactivating) ;; *) exit 0 ;; esac
sed -n 's/^#id\\t//p' {HOME}/{model.name}/plan"""
    return WeightsFacts(
        Fact(f"weights {target}", found, lambda text: parse_found(text.strip("\n"))),
        Fact(f"manifest {target}", f"cat {quote([f'{target}/{OWN}/manifest'])} 2>/dev/null || true", parse_manifest),
        Fact(f"fetch {model.name}", busy, str.strip),
    )


def ask(url: str) -> Command:
    """Return the command that asks a hub for a page of its listing, from the host: its network is the one that matters."""
    argv = ["curl", "-sS", "-i", "-g", "-L", "--proto", "=http,https", "--proto-redir", "=http,https", "--max-redirs", "5"]
    limits = ["--connect-timeout", "8", "--max-time", "60", "-A", "lodger", "--", url]
    return Command(
        quote([*argv, *limits]),
        why=f"ask for the listing: {url}",
        sudo=False,
        timeout=70,
        ok=tuple(range(128)),
        output_limit=LISTING,
    )


def start(plan: FetchPlan, text: str) -> Command:
    """Return the command that lays the plan and the script on the host and has systemd run it; ``text`` is the plan's.

    It prints ``started``, or ``running`` and the id of the plan of the fetch that was there before: two at once are one.
    The lost connection of whoever started it does not cut the fetch, and systemd starts it again when somebody kills it.
    """
    home, name = f"{HOME}/{plan.model}", unit(plan.model)
    properties = {
        "Type": "exec",
        "Restart": "on-abort",
        "RestartSec": "1",
        "RuntimeMaxSec": str(LONGEST),
        "TimeoutStopSec": "20",
        "EnvironmentFile": "-/etc/environment",  # where hosts name their proxy
        "StandardOutput": f"append:{home}/output",
        "StandardError": f"append:{home}/output",
    }
    run = ["systemd-run", "--quiet", "--collect", f"--unit={name}", *(f"--property={k}={v}" for k, v in properties.items())]
    script = (_TEMPLATES / "fetch.sh").read_text(encoding="utf-8")
    body = f"""mkdir -p {home} && exec 7> {HOME}/starting && flock -w 30 7 || exit 1
case $(systemctl is-active {name}) in
active | activating | deactivating | reloading) echo running "$(sed -n 's/^#id\\t//p' {home}/plan)"; exit 0 ;;
esac
systemctl reset-failed {name} 2> /dev/null
umask 077 && cat > {home}/new && sed '1,/^@@plan$/d' {home}/new > {home}/plan &&
sed '/^@@plan$/,$d' {home}/new > {home}/fetch.sh && rm -f {home}/new && : > {home}/log && : > {home}/output &&
{quote([*run, "--", "/bin/sh", f"{home}/fetch.sh", home])} 7>&- && echo started"""
    return Command(body, why=f"fetch {plan.model} in {name}", stdin=f"{script}@@plan\n{text}".encode(), timeout=90)


def poll(model: str, target: str, seen: int, patience: float = 0) -> Command:
    """Return the command that waits ``patience`` seconds, less if the fetch ends, and reads how far it is.

    That is its unit's state, sizes of what is half there, how far files are hashed, and its log after ``seen`` lines.
    """
    stage = quote([f"{target}/{OWN}"])
    wait = f"flock -s -w {patience:.1f} {HOME}/{model}/lock true\n" if patience else ""
    body = f"""{wait}systemctl is-active {unit(model)}
find {stage} -maxdepth 1 {_HALF} -printf 'half\\t%s\\t%f\\n' 2> /dev/null
for pid in $(cat /sys/fs/cgroup/system.slice/{unit(model)}.service/cgroup.procs 2> /dev/null); do
    printf 'read\\t%s\\t%s\\n' "$(sed -n 's/^pos:\\t//p' /proc/$pid/fdinfo/0)" "$(readlink /proc/$pid/fd/0)"
done 2> /dev/null
echo {_MARK}; tail -n +{seen + 1} {HOME}/{model}/log 2> /dev/null"""
    return Command(body, why=f"see how far the fetch of {model} is", timeout=60, ok=(0, 1))


@dataclass(frozen=True)
class Glimpse:
    """What a poll read: whether the unit lives, bytes by key, bytes hashed by absolute path, and new lines of the log."""

    alive: bool
    half: Mapping[str, int]
    hashed: Mapping[str, int]
    lines: tuple[str, ...]


def parse_poll(text: str) -> Glimpse:
    """Return what :func:`poll` printed; a line of the log that is half written waits for the next poll."""
    before, _, log = text.partition(f"{_MARK}\n")
    state, *sizes = before.splitlines() or [""]
    known: dict[str, dict[str, int]] = {"half": {}, "read": {}}
    for line in sizes:
        word, size, name = (*line.split("\t", 2), "", "")[:3]
        if word in known and size.isdigit():
            known[word][name] = int(size)
    alive = state in {"active", "activating", "deactivating", "reloading"}
    return Glimpse(alive, known["half"], known["read"], tuple(log.split("\n")[:-1]))


def cancel(model: str) -> Command:
    """Return the command that ends a fetch; what is half there stays."""
    return Command(f"systemctl stop {unit(model)}", why=f"stop the fetch of {model}", timeout=60, ok=(0, 5))


def planned(model: str) -> Command:
    """Return the command that prints the plan of the fetch that runs, or that ran last."""
    return Command(f"cat {HOME}/{model}/plan", why=f"read the plan of the fetch of {model}", output_limit=LISTING)


def share(model: str, target: str, token: str, names: list[str]) -> Command:
    """Return the command that has a host serve files of a model to another; it prints the port."""
    home, name = f"{paths.SHARE}/{model}-{token}", f"lodger-share-{model}-{token}"
    properties = {
        "RuntimeMaxSec": str(LONGEST),
        "StandardInput": f"file:{home}/names",
        "StandardOutput": f"file:{home}/port",
        "ProtectSystem": "strict",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "CAP_DAC_READ_SEARCH",
        "ExecStopPost": f"+/bin/rm -rf {home}",
    }
    run = ["systemd-run", "--quiet", "--collect", f"--unit={name}", *(f"--property={k}={v}" for k, v in properties.items())]
    server = ["--", "python3", f"{home}/share.py", target, token, str(IDLE)]
    script = (_TEMPLATES / "share.py").read_text(encoding="utf-8")
    body = f"""command -v python3 > /dev/null || {{ echo "there is no python3 on this host" >&2; exit 1; }}
umask 077 && mkdir -p {home} && cat > {home}/new && sed '1,/^@@names$/d' {home}/new > {home}/names &&
sed '/^@@names$/,$d' {home}/new > {home}/share.py && {quote([*run, *server])} || exit 1
for _ in $(seq 100); do [ ! -s {home}/port ] || {{ cat {home}/port; exit 0; }}; sleep 0.1; done
systemctl stop {name}; echo "it does not start; see journalctl -u {name}" >&2; exit 1"""
    content = f"{script}@@names\n" + "\n".join([*names, ""])
    return Command(body, why=f"serve {model} to another host", stdin=content.encode(), timeout=60)


def unshare(model: str, token: str) -> Command:
    """Return the command that ends what :func:`share` began."""
    return Command(
        f"systemctl stop lodger-share-{model}-{token}", why=f"stop serving {model} to another host", timeout=60, ok=(0, 5)
    )


def small_file(target: str, name: str) -> Command:
    """Return the command that prints a small file of a model."""
    return Command(f"cat {quote([f'{target}/{name}'])}", why=f"read {name}", output_limit=LISTING)


def answered(code: int, out: str, err: str) -> hub.Response:
    """Return the hub's response to :func:`ask`; raise HubError where there is none."""
    if code != 0:
        said = err.strip().splitlines()
        raise hub.HubSilent("the hub does not answer", cause=said[-1] if said else f"curl ended with {code}")
    try:
        return hub.parse_response(out)
    except (ValueError, IndexError) as error:
        raise hub.HubError("the hub's answer is no HTTP", cause=str(error)) from error
