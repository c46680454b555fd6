"""The site's own inventory, broken one way at a time: each mistake is named with file, line, path and what is accepted."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lodger import inventory
from tests.unit.inventory.support_inventory import HOSTS, Edit, line_of


def test_the_sites_own_inventory_is_the_deployment_that_it_repeats() -> None:
    fleet = inventory.load(HOSTS)
    node1, node2 = fleet.hosts["node1"], fleet.hosts["node2"]
    assert (node1.gpus.count, node1.gpus.memory_mib, node1.driver) == (4, 24576, "580.126.09")
    assert {name: (w.port, w.gpus) for name, w in node1.workers.items()} == {"a": (30000, (0, 1, 2, 3))}
    assert {name: (w.port, w.gpus) for name, w in node2.workers.items()} == {
        "a": (30000, (0, 1, 2, 3)),
        "b": (30001, (4, 5, 6, 7)),
    }
    assert node1.router is None
    assert node2.router is not None
    assert node2.router.port == 30002
    assert {name: (n.kind, n.policy) for name, n in node1.neighbours.items()} == {
        "aigc-creator": ("program", "pause"),
        "qwen38-fp8-sglang": ("container", "replace"),
    }
    assert [node1.reserved_mib(gpu) for gpu in range(4)] == [1024] * 4
    assert {name: (n.kind, n.policy) for name, n in node2.neighbours.items()} == {"vllm-qwen.service": ("unit", "replace")}


def test_everything_knows_its_own_name() -> None:
    fleet = inventory.load(HOSTS)
    named: tuple[dict[str, Any], ...] = (
        fleet.hosts,
        fleet.pools,
        fleet.models,
        fleet.images,
        *(h.workers for h in fleet.hosts.values()),
        *(h.neighbours for h in fleet.hosts.values()),
    )
    for items in named:
        assert {key: item.name for key, item in items.items()} == {key: key for key in items}


def test_a_workers_settings_are_its_pools_with_its_own_in_place(edit: Edit, hosts: Path) -> None:
    edit(
        "node2.yml", "port: 30001}", "port: 30001, engine: {context_length: 4096, tool_call_parser: null, draft: {tokens: 4}}}"
    )
    fleet = inventory.load(hosts)
    a, b = (fleet.settings(fleet.hosts["node2"].workers[name]) for name in "ab")
    assert (a.context_length, a.tool_call_parser, a.draft and a.draft.tokens) == (131072, "qwen3_coder", 8)
    assert (b.context_length, b.tool_call_parser, b.draft and b.draft.tokens) == (4096, None, 4)
    assert b.draft
    assert (b.draft.algorithm, b.mem_fraction_static) == ("DFLASH", 0.80)


def test_a_pools_workers_come_from_all_hosts_in_order() -> None:
    fleet = inventory.load(HOSTS)
    assert [(host.name, worker.name) for host, worker in fleet.pool_workers("qwen38")] == [
        ("node1", "a"),
        ("node2", "a"),
        ("node2", "b"),
    ]


def test_reserved_memory_is_counted_where_the_neighbour_is(edit: Edit, hosts: Path) -> None:
    edit("node1.yml", "gpu_memory_mib: 1024}", "gpu_memory_mib: 1024, gpus: [1, 3]}")
    assert [inventory.load(hosts).hosts["node1"].reserved_mib(gpu) for gpu in range(4)] == [0, 1024, 0, 1024]


def test_a_value_can_be_found_again_in_its_file(hosts: Path) -> None:
    fleet = inventory.load(hosts)
    assert fleet.where("workers", "a", "gpus", 2, host="node1") == f"{hosts}/node1.yml:{line_of(hosts, 'node1.yml', '  a: {')}"
    assert fleet.where("pools", "qwen38", "mem_fraction_static") == (
        f"{hosts}/fleet.yml:{line_of(hosts, 'fleet.yml', 'mem_fraction_static: ')}"
    )


def test_the_inventory_cannot_be_changed_by_those_who_read_it() -> None:
    fleet = inventory.load(HOSTS)
    with pytest.raises(ValidationError, match="frozen"):
        fleet.hosts["node1"].address = "elsewhere"  # type: ignore[misc]  # that it is refused is what is tested


def test_files_of_models_and_other_files_are_none_of_the_loaders(hosts: Path) -> None:
    (hosts / "models" / "m").mkdir(parents=True)
    (hosts / "models" / "m" / "x.yml").write_text("{")
    (hosts / "README.md").write_text("{")
    (hosts / ".node9.yml").write_text("{")
    assert set(inventory.load(hosts).hosts) == {"node1", "node2"}
