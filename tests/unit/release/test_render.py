"""What a rendered release says: read back as Compose and systemd read it, not compared as text (that is in golden/)."""

import json
import shlex

import pytest

from lodger.checkout import CODE
from lodger.inventory import Draft, Fleet
from lodger.release.render import render, worker_urls
from tests.unit.release.support_render import ROOT, changed, compose, service, values

# The options of SGLang 0.5.19 with their types and choices, as its own argparse has them.
OPTIONS = {
    flag: option for option in json.loads((ROOT / "lab/engine/sglang/options.json").read_text()) for flag in option["flags"]
}
ROUTER_OPTIONS = json.loads((CODE / "tests/unit/data/router-options.json").read_text())

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
        "io.lodger.config": worker.config,
    }
    assert compose(release, "router")["labels"] == {
        "io.lodger.host": "node2",
        "io.lodger.router": "qwen38",
        "io.lodger.port": "30002",
        "io.lodger.health": "/health",
        "io.lodger.config": router.config,
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
