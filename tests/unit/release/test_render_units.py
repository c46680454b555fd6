"""What a rendered release says: read back as Compose and systemd read it, not compared as text (that is in golden/)."""

import configparser

import pytest
import yaml
from jinja2 import UndefinedError

from lodger import inventory
from lodger.engines.sglang.router_api import MUST_MATCH
from lodger.errors import InventoryError
from lodger.inventory import Fleet, Router, Vrrp, Worker
from lodger.release.quoting import compose_value, environment, word
from lodger.release.render import render, router_beside
from lodger.release.service import File, Release
from tests.unit.release.support_render import ROOT, changed, compose, content, service, values


def unit(release: Release, name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep keys' case
    parser.read_string(content(release.files, f"units/lodger-{name}.service"))
    return parser


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
    assert [f.path for f in render(both, both.hosts["node1"]).files if "keepalived" in f.path] == []
    pool = both.pools["qwen38"].model_copy(update={"vrrp": Vrrp(address="10.0.0.9/24", id=51)})
    hosts = {
        name: host.model_copy(update={"router": (host.router or STANDBY).model_copy(update={"interface": f"eno{name[-1]}"})})
        for name, host in both.hosts.items()
    }
    wanted = both.model_copy(update={"pools": {"qwen38": pool}, "hosts": hosts})
    for name, priority in (("node1", "100"), ("node2", "150")):
        (file,) = (f for f in render(wanted, hosts[name]).files if "keepalived" in f.path)
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
    assert (data["container_name"], beside.services[0].unit) == ("lodger-router-probe", "lodger-router-probe.service")
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
    assert service(after, "worker-a").config != service(before, "worker-a").config
    assert service(after, "worker-b") == service(before, "worker-b")
    assert service(after, "router") == service(before, "router")
    assert after.id != before.id


def test_a_change_of_the_unit_alone_is_a_change_of_the_service(fleet: Fleet) -> None:
    before = render(fleet, fleet.hosts["node1"]).services[0]
    slower = changed(fleet, pool={"restart_delay_s": 16})
    assert render(slower, slower.hosts["node1"]).services[0].config != before.config


def test_release_id_covers_path_mode_and_content() -> None:
    def release(file: File) -> str:
        return Release("h", (), (file,)).id

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
    assert "./ops pin" in caught.value.hint


def test_template_that_names_an_unknown_value_fails() -> None:
    with pytest.raises(UndefinedError):
        environment(compose_value).from_string("{{ no_such_thing }}").render()


def test_template_cannot_print_a_missing_value_as_text() -> None:
    with pytest.raises(TypeError, match="None"):
        environment(compose_value).from_string("{{ value }}").render(value=None)


@pytest.mark.parametrize(("value", "expected"), [(0.8, "0.80"), (0.813, "0.813"), (2.0, "2.00"), (7, "7"), (1e-7, "1e-07")])
def test_numbers_on_a_command_line_read_back_as_themselves(value: float, expected: str) -> None:
    assert word(value) == expected
    assert float(word(value)) == value


def test_a_worker_is_to_say_of_itself_all_in_which_its_pool_has_to_agree(fleet: Fleet) -> None:
    (service, *_) = render(fleet, fleet.hosts["node2"]).services
    assert set(MUST_MATCH) <= service.identity.keys()
    assert service.identity["version"] == "0.5.19"
    assert service.identity["tokenizer_path"] == service.identity["model_path"] == "/models/Qwen3.8-27B-FP8"
