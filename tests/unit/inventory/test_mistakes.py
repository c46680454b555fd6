"""The site's own inventory, broken one way at a time: each mistake is named with file, line, path and what is accepted."""

from pathlib import Path

import pytest

from lodger import inventory
from lodger.errors import InventoryError
from tests.unit.inventory.support_inventory import Edit, line_of


def refusal(folder: Path) -> str:
    with pytest.raises(InventoryError) as caught:
        inventory.load(folder)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(folder), "hosts")


A = "workers.a"
W = "a: {pool: qwen38, gpus: [0, 1, 2, 3], port: 30000}"
MISTAKES = [
    # unknown, missing, wrong type
    ("node1.yml", "driver:", "drivers:", "drivers: is not a key here, did you mean driver?; accepted: address, "),
    ("node1.yml", 'driver: "580.126.09"', "#", "driver: is missing; accepted: a version in quotes"),
    ("node1.yml", "memory_mib: 24576", "memory_mib: lots", 'gpus.memory_mib: cannot be "lots"; accepted: a whole number at least 1'),
    ("node1.yml", "kind: program", "kind: programme", 'cannot be "programme"; accepted: unit, user-unit, program, container, compose'),
    ("node1.yml", "port: 30000", "port: 70000", f"{A}.port: cannot be the number 70000; accepted: a whole number at least 1 and at most 65535"),
    ("node1.yml", "port: 30000", 'port: "30000"', f'{A}.port: cannot be "30000"; accepted: a whole number'),
    ("node1.yml", "port: 30000", "port: true", f"{A}.port: cannot be true; accepted: a whole number"),
    ("node1.yml", "port: 30000", "port: ~", f"{A}.port: cannot be empty; accepted: a whole number"),
    ("node1.yml", "port: 30000", "port: 1e4", f"{A}.port: cannot be the number 1e4; accepted: a whole number"),
    ("node1.yml", "port: 30000", f"port: {'9' * 5000}", f'{A}.port: cannot be "999'),
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: 4", f"{A}.gpus: cannot be the number 4; accepted: a list, each item a whole number"),
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: [0, 1, 2, -1]", f"{A}.gpus[3]: cannot be the number -1; accepted: a whole number at least 0"),
    ("node1.yml", W, "a: 30000", f"{A}: cannot be the number 30000; accepted: a mapping with the keys pool, gpus, port"),
    ("node1.yml", W, "A_1: {pool: qwen38, gpus: [0], port: 1}", 'workers.A_1: cannot be "A_1"; accepted: lower-case letters, digits and -'),
    ("node1.yml", W, f"{W[:-1]}, name: a}}", f"{A}.name: is not a key here; accepted: pool, gpus"),
    ("node1.yml", "/data/models", "data/models", 'models_dir: cannot be "data/models"; accepted: an absolute path'),
    ("node1.yml", "/data/models", "/data/../models", "models_dir: cannot be"),
    ("node1.yml", "/data/models", '"/data/\\nmodels"', "models_dir: cannot be"),
    ("node1.yml", "address: node1", "address: -oProxyCommand=x", "address: cannot be"),
    ("node1.yml", "aigc-creator:", "lodger-worker-a:", "neighbours.lodger-worker-a: cannot be"),
    ("fleet.yml", "directory: Qwen3.8-27B-FP8", "directory: ../other", "directory: cannot be"),
    ("fleet.yml", "served_name: qwen3.8-27b", "served_name: --port", "served_name: cannot be"),
    ("fleet.yml", "sha256:1173f6", "sha256:1173F6", "images.sglang.digest: cannot be"),
    ("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: 80", "mem_fraction_static: cannot be the number 80; accepted: a number above 0 and below 1"),
    ("fleet.yml", "repository: docker.m.daocloud.io/lmsysorg/sglang\n", "repository: docker.m.daocloud.io/lmsysorg/sglang:latest\n", "repository: cannot be"),
    ("fleet.yml", "algorithm: DFLASH", "algorithm: dflash", 'draft.algorithm: cannot be "dflash"; accepted: DFLASH, DSPARK'),
    ("fleet.yml", "  endpoints:\n    modelscope:", "  endpoints:\n    modelcsope:", 'weights.endpoints.modelcsope: cannot be "modelcsope"; accepted: modelscope, huggingface'),
    # YAML
    ("node1.yml", "port: 30000", "port: 030000", f"{A}.port: 030000 without quotes has a leading zero, which some readers take for octal; write 30000"),
    ("node1.yml", "port: 30000", "port: 30_000", f"{A}.port: 30_000 without quotes has underscores"),
    ("node1.yml", "port: 30000", "port: 0x7530", f"{A}.port: 0x7530 without quotes is not a decimal number"),
    ("node1.yml", "port: 30000", "port: 8:20:00", f"{A}.port: 8:20:00 without quotes is a number of base 60"),
    ("node1.yml", '"580.126.09"', "580.10", 'driver: cannot be the number 580.10; accepted: a version in quotes, such as "12.9" (as text, in quotes: "580.10")'),
    ("fleet.yml", 'cuda: "12.9"', "cuda: 12.9", 'images.sglang.cuda: cannot be the number 12.9; accepted: a version in quotes, such as "12.9", or nothing (as text, in quotes: "12.9")'),
    ("fleet.yml", "disable_custom_all_reduce: true", "disable_custom_all_reduce: yes", 'yes without quotes is true or false to some readers and text to others; write true or, as text, "yes"'),
    ("fleet.yml", "disable_custom_all_reduce: true", "disable_custom_all_reduce: Off", "write false"),
    ("fleet.yml", "disable_custom_all_reduce: true", "disable_custom_all_reduce: 1", "disable_custom_all_reduce: cannot be the number 1; accepted: true or false"),
    ("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: .inf", "mem_fraction_static: .inf without quotes is not a finite number"),
    ("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: 1e999", 'mem_fraction_static: cannot be "1e999"'),
    ("node1.yml", "address: node1", "address: node1\naddress: node3", "address: is given twice, first on line 2; keep one"),
    ("node1.yml", "gpus: {model: N", "gpus: &g {model: N", "gpus: has the anchor &g: anchors are not used here"),
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: *g", f"{A}.gpus: is the alias *g: aliases are not used here"),
    ("node1.yml", "port: 30000", "port: !!int 30000", f"{A}.port: has the tag tag:yaml.org,2002:int: tags are not used here"),
    ("node1.yml", W, "<<: {a: 1}", "workers[<<]: is a merge key"),
    ("node1.yml", "address: node1", "[1]: node1", "has a key that is not plain text"),
    ("node1.yml", "  a: {", "\ta: {", "is not YAML: a tab; indent with spaces"),
    ("node1.yml", "  a: {", "  a: }", "is not YAML: "),
    ("node1.yml", "address: node1", "address: node1\x00", "holds a character that YAML does not allow: U+0000"),
    ("node1.yml", "address: node1", "address: node1\n---\nx: 1", "holds a second document"),
    ("node1.yml", "address: node1", f"address: {'[' * 99}{']' * 99}", "is nested deeper than 32 levels"),
    # one file by itself
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: [0, 1, 2, 4]", f"{A}.gpus[3]: the host has no GPU 4; accepted: 0 to 3"),
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: [0, 1, 2, 2]", f"{A}.gpus[3]: GPU 2 is listed twice"),
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: [0, 1, 2]", f"{A}.gpus: 3 GPUs do not divide the model's heads evenly; accepted: 1, 2, 4 or 8 GPUs"),
    ("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: []", f"{A}.gpus: 0 GPUs"),
    ("node2.yml", "gpus: [4, 5, 6, 7]", "gpus: [3, 4, 5, 6]", "workers.b.gpus[0]: GPU 3 belongs to worker a"),
    ("node2.yml", "port: 30001", "port: 30000", "workers.b.port: port 30000 belongs to worker a"),
    ("node2.yml", "port: 30002", "port: 30001", "router.port: port 30001 belongs to worker b"),
    ("node2.yml", "prometheus_port: 29000", "prometheus_port: 30002", "router.prometheus_port: port 30002 belongs to the router"),
    ("node1.yml", "policy: pause", "policy: replace", "neighbours.aigc-creator.policy: a supervisord program cannot be replaced"),
    ("node1.yml", "kind: container, policy: replace", "kind: unit, policy: replace", "neighbours.qwen38-fp8-sglang: is not the name of a unit; accepted: a unit's full name"),
    ("node2.yml", "policy: replace", "policy: replace, gpu_memory_mib: 5", "neighbours[vllm-qwen.service].gpu_memory_mib: a replaced neighbour does not run"),
    ("node1.yml", "gpu_memory_mib: 1024", "gpu_memory_mib: 24576", "leaves nothing of a GPU; accepted: below 24576"),
    ("node1.yml", "kind: container, policy: replace", "kind: user-unit, policy: pause", "neighbours.qwen38-fp8-sglang: is not the name of a user-unit; accepted: user:unit"),
    ("node1.yml", "gpu_memory_mib: 1024", "gpu_memory_mib: 1024, gpus: [4]", "neighbours.aigc-creator.gpus[0]: the host has no GPU 4"),
    # one file against another
    ("node1.yml", "pool: qwen38", "pool: qwen", f"{A}.pool: there is no pool qwen; accepted: qwen38"),
    ("node2.yml", "router: {pool: qwen38", "router: {pool: qwen", "router.pool: there is no pool qwen; accepted: qwen38"),
    ("node1.yml", "address: node1", "address: node2", "address: node1 is already host"),
    ("fleet.yml", "    image: sglang", "    image: sglan", "pools.qwen38.image: there is no image sglan; accepted: router, sglang"),
    ("fleet.yml", "    router_image: router\n", "", "pools.qwen38: router_image is missing, and node2 has a router for the pool"),
    ("fleet.yml", "    model: qwen3.8-27b-fp8", "    model: other", "pools.qwen38.model: there is no model other; accepted: qwen3.8-27b-dflash2, qwen3.8-27b-fp8"),
    ("fleet.yml", "    served_name: qwen3.8-27b\n", "", "models[qwen3.8-27b-fp8]: served_name is missing, and pool qwen38 serves it"),
    ("fleet.yml", "model: qwen3.8-27b-dflash2", "model: qwen3.8-27b-fp8", "draft.model: is the model itself"),
    ("fleet.yml", "model: qwen3.8-27b-dflash2", "model: other", "draft.model: there is no model other"),
    ("fleet.yml", "      model: qwen3.8-27b-dflash2\n", "", "pools.qwen38.draft: DFLASH needs draft.model"),
    ("fleet.yml", "algorithm: DFLASH", "algorithm: NGRAM", "draft.model: NGRAM uses no draft model"),
    ("fleet.yml", "stop_timeout_s: 930 ", "stop_timeout_s: 900 ", "pools.qwen38.stop_timeout_s: is 900, which would cut off answers"),
    ("node1.yml", "port: 30000}", "port: 30000, listen: 127.0.0.1}", f"{A}.listen: the router on node2 cannot reach 127.0.0.1"),
    ("node1.yml", "port: 30000}", "port: 30000, listen: 10.0.0.256}", f'{A}.listen: cannot be "10.0.0.256"; accepted: an IPv4 address'),
    ("node1.yml", "address: node1", "address: node1\nrouter: {pool: qwen38, port: 30002, prometheus_port: 29000}", "router.pool: pool qwen38 has its router on node1"),
    ("fleet.yml", "    router_image: router\n", "    router_image: router\n    vrrp: {address: 10.0.0.9/24, id: 51}\n", "router: interface is missing, and pool qwen38 has a virtual address"),
    ("fleet.yml", "    router_image: router\n", "    router_image: router\n    vrrp: {address: 10.0.0.9, id: 51}\n", "vrrp.address: cannot be"),
    ("fleet.yml", "    router_image: router\n", "    router_image: router\n    vrrp: {address: 10.0.0.9/33, id: 51}\n", "vrrp.address: cannot be"),
    ("node2.yml", "port: 30002", "port: 30002, interface: 'eno1 {'", "router.interface: cannot be"),
    ("fleet.yml", "tag: v0.5.19-cu129", "tag: v\uff10.5", "images.sglang.tag: cannot be"),
    ("node1.yml", "port: 30000}", "port: 30000, engine: {tool_parser: x}}", f"{A}.engine.tool_parser: is not a key here, did you mean tool_call_parser?"),
    ("node1.yml", "port: 30000}", "port: 30000, engine: {context_length: yes}}", f"{A}.engine.context_length: yes without quotes"),
    ("node1.yml", "port: 30000}", "port: 30000, engine: {context_length: long}}", f'{A}.engine.context_length: cannot be "long"'),
    ("node1.yml", "port: 30000}", "port: 30000, engine: {draft: {tokens: 0}}}", f"{A}.engine.draft.tokens: cannot be the number 0"),
    ("node1.yml", "port: 30000}", "port: 30000, engine: {stop_timeout_s: 9}}", f"{A}.engine.stop_timeout_s: is 9, which would cut off"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{m[0][:5]}-{m[2][:32]!r}" for m in MISTAKES])
def test_mistake_is_named_with_file_line_path_and_what_is_accepted(
    edit: Edit, hosts: Path, mistake: tuple[str, str, str, str]
) -> None:
    file, old, new, expected = mistake
    edit(file, old, new)
    message = refusal(hosts).replace("address: node2 is already host node1", "address: node1 is already host node2")
    assert expected in message
    assert message.count("hosts/") == 1, message
    head, _, _ = message.partition(": ")
    name, _, line = head.removeprefix("hosts/").partition(":")
    assert name.endswith(".yml")
    assert int(line) >= 1


def test_line_is_the_one_of_the_value(edit: Edit, hosts: Path) -> None:
    edit("fleet.yml", "tokens: 8", "tokens: eight")
    assert refusal(hosts).startswith(
        f"hosts/fleet.yml:{line_of(hosts, 'fleet.yml', 'tokens: eight')}: pools.qwen38.draft.tokens: "
    )


def test_line_of_something_missing_is_that_of_what_it_is_missing_in(edit: Edit, hosts: Path) -> None:
    edit("fleet.yml", "      tokens: 8 ", "      # tokens: 8 ")
    assert refusal(hosts).startswith(
        f"hosts/fleet.yml:{line_of(hosts, 'fleet.yml', 'draft:')}: pools.qwen38.draft.tokens: is missing"
    )


def test_mistakes_of_all_files_are_reported_together_in_order(edit: Edit, hosts: Path) -> None:
    edit("fleet.yml", "site: lab", "site: Lab")
    edit("node2.yml", "port: 30001", "port: 0o7")
    edit("node2.yml", "address: node2", "adress: node2")
    edit("node1.yml", "gpus: [0, 1, 2, 3]", "gpus: [0, 9]")
    message = refusal(hosts)
    assert message.startswith("the inventory has 4 mistakes\n")
    starts = [line.strip().rsplit(": ", 1)[0] for line in message.splitlines()[1:]]
    assert [start.split(": ")[0].split(":")[0] for start in starts] == [
        "hosts/fleet.yml",
        "hosts/node1.yml",
        "hosts/node2.yml",
        "hosts/node2.yml",
    ]
    assert all(word in message for word in ("site:", "no GPU 9", "adress: is not a key", "0o7"))


def test_two_files_for_one_machine_are_found_by_its_id(edit: Edit, hosts: Path) -> None:
    for name in ("node1", "node2"):
        edit(f"{name}.yml", f"address: {name}", f'address: {name}\nmachine_id: "{"0f" * 16}"')
    assert "hosts/node2.yml:3: machine_id: is also that of host node1" in refusal(hosts)


def test_machine_id_of_digits_only_stays_what_was_written(edit: Edit, hosts: Path) -> None:
    edit("node1.yml", "address: node1", f"address: node1\nmachine_id: {'12' * 16}")
    assert inventory.load(hosts).hosts["node1"].machine_id == "12" * 16


def test_two_workers_of_a_pool_at_one_url_are_found(edit: Edit, hosts: Path) -> None:
    edit("node1.yml", "address: node1", "address: node1\nservice_address: node2")
    assert "workers.a.port: node2:30000 is already worker a on node1" in refusal(hosts)


def test_router_that_listens_elsewhere_than_at_the_virtual_address_is_found(edit: Edit, hosts: Path) -> None:
    edit("fleet.yml", "    router_image: router\n", "    router_image: router\n    vrrp: {address: 10.0.0.9/24, id: 51}\n")
    edit("node2.yml", "port: 30002", "port: 30002, interface: eno1, listen: 10.0.0.2")
    assert "router.listen: nobody reaches it at 10.0.0.9/24 then" in refusal(hosts)


def test_router_without_workers_is_found(edit: Edit, hosts: Path) -> None:
    (hosts / "node1.yml").unlink()
    text = (hosts / "node2.yml").read_text()
    (hosts / "node2.yml").write_text(
        "".join(line for line in text.splitlines(True) if not line.startswith(("workers:", "  a:", "  b:")))
    )
    assert "router.pool: no host has a worker in pool qwen38" in refusal(hosts)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("node3.yml", b"", "hosts/node3.yml:1: is empty; accepted: keys with values"),
        ("node3.yml", b"# only a comment\n", "hosts/node3.yml:1: is empty"),
        ("node3.yml", b"- a\n", "hosts/node3.yml:1: is not a mapping"),
        ("node3.yml", b"address: x\nmodels_dir: /\xff\n", "hosts/node3.yml:2: is not UTF-8 (byte 0xff)"),
        ("node3.yml", "address: n\n".encode("utf-16"), "hosts/node3.yml:1: is not UTF-8"),
        ("node3.yaml", b"address: x\n", "hosts/node3.yaml:1: is not read under this name; rename it to end in .yml"),
        ("all.yml", b"address: x\n", "hosts/all.yml:1: has a name that no host can have"),
        ("Node_3.yml", b"address: x\n", "hosts/Node_3.yml:1: has a name that no host can have"),
        ("fleet.yml", b"", "hosts/fleet.yml:1: is empty"),
    ],
)
def test_file_that_cannot_be_one_is_named(hosts: Path, name: str, content: bytes, expected: str) -> None:
    (hosts / name).write_bytes(content)
    message = refusal(hosts)
    assert expected in message
    assert message.count("hosts/") == 1, message


def test_byte_order_mark_is_not_a_mistake(hosts: Path) -> None:
    (hosts / "node1.yml").write_bytes(b"\xef\xbb\xbf" + (hosts / "node1.yml").read_bytes())
    assert "node1" in inventory.load(hosts).hosts


@pytest.mark.parametrize("missing", ["fleet.yml", "node1.yml node2.yml", "."])
def test_folder_without_an_inventory_says_how_to_name_another(hosts: Path, missing: str) -> None:
    if missing == ".":
        hosts = hosts / "nowhere"
    else:
        for name in missing.split():
            (hosts / name).unlink()
    with pytest.raises(InventoryError) as caught:
        inventory.load(hosts)
    assert str(hosts) in str(caught.value)
    assert caught.value.hint
