"""What a rendered release says: read back as Compose and systemd read it, not compared as text (that is in golden/)."""

import configparser
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import UndefinedError

from lodger import inventory
from lodger.errors import InventoryError
from lodger.inventory import Draft, Fleet, Image, Router, Vrrp, Worker
from lodger.membership import SAME
from lodger.render import (
    File,
    Release,
    Service,
    _compose_value,
    _environment,
    engine_version,
    render,
    router_beside,
    word,
    worker_urls,
)

ROOT = Path(__file__).parents[2]
# The options of SGLang 0.5.19 with their types and choices, as its own argparse has them.
OPTIONS = {
    flag: option for option in json.loads((ROOT / "lab/engine/sglang/options.json").read_text()) for flag in option["flags"]
}
ROUTER_OPTIONS = json.loads((Path(__file__).parent / "data/router-options.json").read_text())

# The command line of the hand-made deployment that this project repeats: values as it had them.
FIRST_DEPLOYMENT = shlex.split("""
    -m sglang.launch_server
    --model-path /models/Qwen3.8-27B-FP8
    --speculative-algorithm DFLASH
    --speculative-draft-model-path /models/Qwen3.8-27B-DFlash2
    --speculative-num-draft-tokens 8
    --tp-size 4
    --context-length 131072
    --mem-fraction-static 0.80
    --chunked-prefill-size 2048
    --mamba-full-memory-ratio 0.75
    --reasoning-parser qwen3
    --tool-call-parser qwen3_coder
    --served-model-name qwen3.8-27b
    --host 0.0.0.0 --port 30000
""")
ADDED = shlex.split("""
    --speculative-draft-model-quantization unquant
    --mamba-radix-cache-strategy extra_buffer
    --max-running-requests 7
    --max-queued-requests 64
    --disable-custom-all-reduce
    --weight-version 017b9c7af6b5689d5dd426a76e0bc077eb5ca20a
    --enable-metrics
    --enable-cache-report
    --log-requests --log-requests-level 0 --log-requests-format json
    --uvicorn-access-log-exclude-prefixes /health /metrics
""")


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = inventory.load(ROOT / "hosts")
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    return fleet.model_copy(update={"images": images})


def changed(fleet: Fleet, host: str = "node1", pool: dict[str, Any] | None = None, **worker: Any) -> Fleet:
    """A fleet with other settings in its pool, or for worker a of a host."""
    pools = {"qwen38": fleet.pools["qwen38"].model_copy(update=pool or {})}
    machine = fleet.hosts[host]
    workers = {**machine.workers, "a": machine.workers["a"].model_copy(update=worker)}
    hosts = {**fleet.hosts, host: machine.model_copy(update={"workers": workers})}
    return fleet.model_copy(update={"pools": pools, "hosts": hosts})


def service(release: Release, name: str) -> Service:
    (found,) = (s for s in release.services if s.name == name)
    return found


def content(files: tuple[File, ...], path: str) -> str:
    (found,) = (f.content for f in files if f.path == path)
    return found


def compose(release: Release, name: str) -> dict[str, Any]:
    text = content(release.files, f"{name}/compose.yml").replace("$$", "$")
    data: dict[str, Any] = yaml.safe_load(text)["services"]["router" if name == "router" else "engine"]
    return data


def unit(release: Release, name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep keys' case
    parser.read_string(content(release.files, f"units/lodger-{name}.service"))
    return parser


def values(argv: list[str]) -> dict[str, list[str]]:
    """Options with the words that follow each."""
    found: dict[str, list[str]] = {}
    for item in argv:
        if item.startswith("--"):
            assert item not in found, f"{item} is given twice"
            found[item] = []
        else:
            list(found.values())[-1].append(item)
    return found


def test_engine_runs_the_first_deployments_command_line_and_then_what_was_added(fleet: Fleet) -> None:
    engine = compose(render(fleet, fleet.hosts["node1"]), "worker-a")
    assert engine["entrypoint"] == ["python3"]
    assert engine["command"] == FIRST_DEPLOYMENT + ADDED


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_engine_options_are_ones_that_the_pinned_version_accepts(fleet: Fleet, host: str) -> None:
    full = {
        "mamba_ssm_dtype": "bfloat16",
        "kv_cache_dtype": "fp8_e4m3",
    }
    for rendered in (fleet, changed(fleet, pool=full)):
        release = render(rendered, rendered.hosts[host])
        for worker in (s.name for s in release.services if s.kind == "worker"):
            for flag, given in values(compose(release, worker)["command"][2:]).items():
                option = OPTIONS[flag]
                many = {None: 1, 0: 0}.get(option["nargs"])
                assert many is None or len(given) == many, f"{flag} takes {many} values, has {given}"
                parse = {"int": int, "float": float}.get(option["type"], str)
                assert all(parse(value) in (option["choices"] or [parse(value)]) for value in given), f"{flag} {given}"


def test_router_options_are_ones_that_the_pinned_version_accepts(fleet: Fleet) -> None:
    command = compose(render(fleet, fleet.hosts["node2"]), "router")["command"]
    assert set(values(command)) <= set(ROUTER_OPTIONS)


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer", "extra_buffer_lazy"])
def test_every_state_strategy_of_the_inventory_is_one_of_the_engines(strategy: str) -> None:
    assert strategy in OPTIONS["--mamba-radix-cache-strategy"]["choices"]


def test_settings_left_out_leave_their_option_out(fleet: Fleet) -> None:
    nothing = dict.fromkeys(
        ("draft", "mamba_full_memory_ratio", "mamba_radix_cache_strategy", "reasoning_parser", "tool_call_parser")
    )
    bare = changed(fleet, pool={**nothing, "max_queued_requests": None, "disable_custom_all_reduce": False})
    given = values(compose(render(bare, bare.hosts["node1"]), "worker-a")["command"][2:])
    gone = [flag for flag in values((FIRST_DEPLOYMENT + ADDED)[2:]) if flag not in given]
    assert gone == [
        "--speculative-algorithm",
        "--speculative-draft-model-path",
        "--speculative-num-draft-tokens",
        "--mamba-full-memory-ratio",
        "--reasoning-parser",
        "--tool-call-parser",
        "--speculative-draft-model-quantization",
        "--mamba-radix-cache-strategy",
        "--max-queued-requests",
        "--disable-custom-all-reduce",
    ]


def test_speculation_without_a_draft_model_names_none(fleet: Fleet) -> None:
    built_in = changed(fleet, pool={"draft": Draft(algorithm="NEXTN", tokens=4)})
    given = values(compose(render(built_in, built_in.hosts["node1"]), "worker-a")["command"][2:])
    assert given["--speculative-algorithm"] == ["NEXTN"]
    assert "--speculative-draft-model-path" not in given


def test_a_workers_own_settings_replace_the_pools_for_it_alone(fleet: Fleet) -> None:
    own = changed(
        fleet, "node2", engine={"tool_call_parser": None, "context_length": 4096, "extra_args": ("--skip-tokenizer-init",)}
    )
    release = render(own, own.hosts["node2"])
    a, b = (values(compose(release, name)["command"][2:]) for name in ("worker-a", "worker-b"))
    assert ("--tool-call-parser" in a, a["--context-length"], list(a)[-1]) == (False, ["4096"], "--skip-tokenizer-init")
    assert ("--tool-call-parser" in b, b["--context-length"]) == (True, ["131072"])


def test_container_has_the_workers_gpus_by_index_and_its_port(fleet: Fleet) -> None:
    engine = compose(render(fleet, fleet.hosts["node2"]), "worker-b")
    assert engine["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "device_ids": ["4", "5", "6", "7"], "capabilities": ["gpu"]}
    ]
    everywhere = "0.0.0.0"  # noqa: S104  # read back from a file
    assert engine["ports"] == [{"target": 30001, "published": "30001", "host_ip": everywhere, "protocol": "tcp"}]
    assert values(engine["command"][2:])["--tp-size"] == ["4"]


def test_container_is_started_by_digest_without_the_network_and_never_by_docker_again(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        release = render(fleet, host)
        for rendered in release.services:
            data = compose(release, rendered.name)
            assert data["image"] == rendered.image
            assert data["image"].endswith("@sha256:" + "5" * 64)
            assert (data["pull_policy"], data["restart"]) == ("never", "no")
            assert data["container_name"] == rendered.container
            assert "max-size" in data["logging"]["options"]


def test_weights_are_read_only_and_their_folder_is_never_made(fleet: Fleet) -> None:
    (volume,) = compose(render(fleet, fleet.hosts["node1"]), "worker-a")["volumes"]
    assert (volume["source"], volume["read_only"], volume["bind"]) == ("/data/models", True, {"create_host_path": False})


def test_labels_say_whose_the_container_is_and_where_it_is_asked(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node2"])
    worker, router = (service(release, name) for name in ("worker-b", "router"))
    assert compose(release, "worker-b")["labels"] == {
        "io.lodger.host": "node2",
        "io.lodger.worker": "b",
        "io.lodger.port": "30001",
        "io.lodger.health": "/health",
        "io.lodger.config": worker.config_hash,
    }
    assert compose(release, "router")["labels"] == {
        "io.lodger.host": "node2",
        "io.lodger.router": "qwen38",
        "io.lodger.port": "30002",
        "io.lodger.health": "/health",
        "io.lodger.config": router.config_hash,
    }


def test_router_reaches_its_own_workers_on_loopback_and_the_others_by_service_address(fleet: Fleet) -> None:
    node1 = fleet.hosts["node1"].model_copy(update={"service_address": "fd00::7"})
    moved = fleet.model_copy(update={"hosts": {**fleet.hosts, "node1": node1}})
    assert worker_urls(fleet, fleet.hosts["node2"], "qwen38") == (
        "http://node1:30000",
        "http://127.0.0.1:30000",
        "http://127.0.0.1:30001",
    )
    assert worker_urls(moved, fleet.hosts["node2"], "qwen38")[0] == "http://[fd00::7]:30000"
    narrow = changed(fleet, "node2", listen="192.0.2.7")
    assert worker_urls(narrow, narrow.hosts["node2"], "qwen38")[1] == "http://192.0.2.7:30000"


STANDBY = Router(pool="qwen38", port=30002, prometheus_port=29000, standby=True)


def two_routers(fleet: Fleet) -> Fleet:
    node1 = fleet.hosts["node1"].model_copy(update={"router": STANDBY})
    return fleet.model_copy(update={"hosts": {**fleet.hosts, "node1": node1}})


def test_standby_router_has_the_same_members_and_options_as_the_other(fleet: Fleet) -> None:
    both = two_routers(fleet)
    one, other = (compose(render(both, both.hosts[name]), "router")["command"] for name in ("node2", "node1"))

    def seen_from_nowhere(command: list[str], host: str) -> list[str]:
        return [word.replace("127.0.0.1:3000", f"{host}:3000") for word in command]

    assert one != other, "each reaches its own host's workers on loopback"
    assert seen_from_nowhere(one, "node2") == seen_from_nowhere(other, "node1")


def test_virtual_address_is_rendered_only_where_the_site_wants_it(fleet: Fleet) -> None:
    both = two_routers(fleet)
    assert [f.path for f in service(render(both, both.hosts["node1"]), "router").files if "keepalived" in f.path] == []
    pool = both.pools["qwen38"].model_copy(update={"vrrp": Vrrp(address="10.0.0.9/24", id=51)})
    hosts = {
        name: host.model_copy(update={"router": (host.router or STANDBY).model_copy(update={"interface": f"eno{name[-1]}"})})
        for name, host in both.hosts.items()
    }
    wanted = both.model_copy(update={"pools": {"qwen38": pool}, "hosts": hosts})
    for name, priority in (("node1", "100"), ("node2", "150")):
        (file,) = (f for f in service(render(wanted, hosts[name]), "router").files if "keepalived" in f.path)
        assert file.path == "router/keepalived.conf", "beside the compose file, where the runbook says"
        lines = [line.strip() for line in file.content.splitlines()]
        assert f"priority {priority}" in lines
        assert {"interface eno" + name[-1], "virtual_router_id 51", "10.0.0.9/24", "nopreempt", "state BACKUP"} <= set(lines)
        assert any(line.startswith("script ") and line.endswith('http://127.0.0.1:30002/readiness"') for line in lines)


def test_router_beside_differs_in_policy_ports_and_name_alone(fleet: Fleet) -> None:
    host = fleet.hosts["node2"]
    beside = router_beside(fleet, host, "round_robin", 29100, 29101)
    data = yaml.safe_load(beside.files[0].content)["services"]["router"]
    deployed = compose(render(fleet, host), "router")
    own = {"--policy": ["round_robin"], "--host": ["127.0.0.1"], "--port": ["29100"], "--prometheus-port": ["29101"]}
    assert values(data["command"]) == {**values(deployed["command"]), **own}
    assert (data["container_name"], beside.unit) == ("lodger-router-probe", "lodger-router-probe.service")
    assert {key for key in data if data[key] != deployed[key]} == {"container_name", "command", "labels"}
    assert data["labels"]["io.lodger.host"] == "node2", "ours, by the guest's rule"


def test_second_try_comes_when_a_dead_worker_is_no_longer_believed_in(fleet: Fleet) -> None:
    given = {
        flag: float(value[0])
        for flag, value in values(compose(render(fleet, fleet.hosts["node2"]), "router")["command"]).items()
        if value and value[0].isdigit()
    }
    believed = given["--health-check-interval-secs"] * given["--health-failure-threshold"]
    assert given["--retry-initial-backoff-ms"] * 0.8 / 1000 > believed, "the router takes a fifth off or adds it"
    assert given["--retry-max-backoff-ms"] >= given["--retry-initial-backoff-ms"]


def test_router_does_not_take_clients_mistakes_for_dead_workers(fleet: Fleet) -> None:
    given = values(compose(render(fleet, fleet.hosts["node2"]), "router")["command"])
    assert "--disable-circuit-breaker" in given
    assert int(given["--health-check-interval-secs"][0]) <= 5
    assert int(given["--balance-abs-threshold"][0]) < fleet.pools["qwen38"].max_running_requests


def test_stop_outlasts_the_longest_answer_at_every_level(fleet: Fleet) -> None:
    release, pool = render(fleet, fleet.hosts["node2"]), fleet.pools["qwen38"]
    for name in ("worker-a", "router"):
        grace = int(compose(release, name)["stop_grace_period"].removesuffix("s"))
        assert pool.longest_stream_s < grace < int(unit(release, name)["Service"]["TimeoutStopSec"])
    assert values(compose(release, "router")["command"])["--request-timeout-secs"] == [str(pool.longest_stream_s)]


def test_crash_loop_falls_into_one_interval_however_late_each_crash_comes(fleet: Fleet) -> None:
    release, engine = render(fleet, fleet.hosts["node1"]), fleet.pools["qwen38"]
    read = unit(release, "worker-a")
    slowest = int(read["Service"]["TimeoutStartSec"]) + engine.start_timeout_s + int(read["Service"]["RestartSec"])
    assert int(read["Unit"]["StartLimitIntervalSec"]) > int(read["Unit"]["StartLimitBurst"]) * slowest


def test_unit_runs_compose_in_the_foreground_from_the_services_own_folder(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    read = unit(release, "worker-a")
    assert read["Service"]["ExecStart"] == (
        '/usr/bin/docker compose -p "lodger-worker-a" -f "/opt/lodger/services/worker-a/compose.yml" '
        'up --exit-code-from "engine" --no-color --no-log-prefix'
    )
    stop = '/usr/bin/docker compose -p "lodger-worker-a" -f "/opt/lodger/services/worker-a/compose.yml" stop'
    assert read["Service"]["ExecStopPost"] == f"-{stop}"
    assert f"\nExecStop={stop}\n" in content(release.files, "units/lodger-worker-a.service")
    assert read["Unit"]["Wants"] == "docker.service"
    assert "Requires" not in read["Unit"]


def test_same_inventory_gives_the_same_release(fleet: Fleet) -> None:
    again = inventory.load(ROOT / "hosts").model_copy(update={"images": fleet.images})
    assert render(again, again.hosts["node2"]) == render(fleet, fleet.hosts["node2"])


def test_a_workers_hash_changes_with_its_own_files_only(fleet: Fleet) -> None:
    before = render(fleet, fleet.hosts["node2"])
    other = changed(fleet, "node2", engine={"context_length": 4096})
    after = render(other, other.hosts["node2"])
    assert service(after, "worker-a").config_hash != service(before, "worker-a").config_hash
    assert service(after, "worker-b") == service(before, "worker-b")
    assert service(after, "router") == service(before, "router")
    assert after.id != before.id


def test_a_change_of_the_unit_alone_is_a_change_of_the_service(fleet: Fleet) -> None:
    before = render(fleet, fleet.hosts["node1"]).services[0]
    slower = changed(fleet, pool={"restart_delay_s": 16})
    assert render(slower, slower.hosts["node1"]).services[0].config_hash != before.config_hash


def test_release_id_covers_path_mode_and_content() -> None:
    def release(file: File) -> str:
        return Release(
            "h", (Service("n", "router", "u", (file,), "c", "n", "i", 1, (), 1, 1, "p", "127.0.0.1", {}, "h", ""),)
        ).id

    ids = {release(File(*args)) for args in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x", 0o600))}
    assert len(ids) == 4
    assert all(len(i) == 16 for i in ids)


def test_files_are_in_the_order_of_their_paths(fleet: Fleet) -> None:
    assert [file.path for file in render(fleet, fleet.hosts["node2"]).files] == [
        "router/compose.yml",
        "units/lodger-router.service",
        "units/lodger-worker-a.service",
        "units/lodger-worker-b.service",
        "worker-a/compose.yml",
        "worker-b/compose.yml",
    ]


def test_host_that_serves_nothing_has_an_empty_release(fleet: Fleet) -> None:
    idle = fleet.hosts["node1"].model_copy(update={"workers": dict[str, Worker]()})
    assert render(fleet, idle).files == ()


def test_image_without_digest_is_not_rendered() -> None:
    fleet = inventory.load(ROOT / "hosts")
    unpinned = fleet.images["sglang"].model_copy(update={"digest": None})
    with pytest.raises(InventoryError, match="image sglang has no digest") as caught:
        render(fleet.model_copy(update={"images": {**fleet.images, "sglang": unpinned}}), fleet.hosts["node1"])
    assert "invoke pin" in caught.value.hint


def test_template_that_names_an_unknown_value_fails() -> None:
    with pytest.raises(UndefinedError):
        _environment(_compose_value).from_string("{{ no_such_thing }}").render()


def test_template_cannot_print_a_missing_value_as_text() -> None:
    with pytest.raises(TypeError, match="None"):
        _environment(_compose_value).from_string("{{ value }}").render(value=None)


@pytest.mark.parametrize(("value", "expected"), [(0.8, "0.80"), (0.813, "0.813"), (2.0, "2.00"), (7, "7"), (1e-7, "1e-07")])
def test_numbers_on_a_command_line_read_back_as_themselves(value: float, expected: str) -> None:
    assert word(value) == expected
    assert float(word(value)) == value


def test_a_worker_is_to_say_of_itself_all_in_which_its_pool_has_to_agree(fleet: Fleet) -> None:
    (service, *_) = render(fleet, fleet.hosts["node2"]).services
    assert set(SAME) <= service.identity.keys()
    assert service.identity["version"] == "0.5.19"
    assert service.identity["tokenizer_path"] == service.identity["model_path"] == "/models/Qwen3.8-27B-FP8"


@pytest.mark.parametrize("words", [["--tokenizer-path", "/models/T"], ["--tokenizer-path=/models/T"]])
def test_a_tokenizer_of_its_own_is_part_of_what_a_worker_serves(fleet: Fleet, words: list[str]) -> None:
    pool = fleet.pools["qwen38"].model_copy(update={"extra_args": ("--tokenizer-path", "/models/S", *words)})
    (service, *_) = render(fleet.model_copy(update={"pools": {"qwen38": pool}}), fleet.hosts["node1"]).services
    assert service.identity["tokenizer_path"] == "/models/T"


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v0.5.19-cu129", "0.5.19"),
        ("0.5.19", "0.5.19"),
        ("v0.5.12.post1-cu129", "0.5.12.post1"),
        ("nightly-0.5", ""),
        ("v0.5x", ""),
    ],
)
def test_an_engines_version_is_read_from_its_tag_or_not_at_all(tag: str, version: str) -> None:
    image = Image(repository="r/sglang", tag=tag)
    assert engine_version(image) == version
