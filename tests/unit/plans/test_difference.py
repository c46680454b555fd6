"""What a plan shows of files: what differs between a host and the release that it would get."""

from __future__ import annotations

from dataclasses import replace

from lodger.checkout import CODE
from lodger.host.facts.deployed import HostFile
from lodger.inventory import Fleet
from lodger.plans.deploy import difference
from lodger.release.render import render
from tests.unit.plans.support_plans import on_host
from tests.unit.readings import deployed, installed, worker

ROOT = CODE


def test_nothing_differs_right_after_a_deploy(fleet: Fleet) -> None:
    for host in fleet.hosts.values():
        release = render(fleet, host)
        assert difference(on_host(release), release) == ""


def test_a_hand_edited_file_shows_as_what_would_be_mended(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    there = on_host(release)
    path = "/etc/systemd/system/lodger-worker-a.service"
    text = there.files[path].content.replace("TimeoutStopSec=", "TimeoutStopSec=1")
    diff = difference(replace(there, files={**there.files, path: HostFile(text, 0o644, "root")}), release)
    lines = diff.splitlines()
    assert lines[:2] == ["--- on the host/units/lodger-worker-a.service", "+++ to be/units/lodger-worker-a.service"]
    assert [line[:16] for line in lines[2:] if line[0] in "+-"] == ["-TimeoutStopSec=", "+TimeoutStopSec="]


def test_a_fresh_host_shows_every_file_as_new(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node2"])
    lines = difference(deployed(), release).splitlines()
    assert [line for line in lines if line.startswith("+++")] == [f"+++ to be/{file.path}" for file in release.files]
    assert not [line for line in lines if line.startswith("-") and not line.startswith("---")]


def test_a_service_that_goes_shows_as_removed_and_a_release_that_only_lies_there_does_not(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    there = on_host(release)
    old = installed("f0", worker("z"))
    linked = replace(there, links={**there.links, "worker-z": "f0"}, stored=(*there.stored, "f0"), files={**there.files, **old})
    diff = difference(linked, release)
    assert "--- on the host/worker-z/compose.yml" in diff
    assert "--- on the host/units/lodger-worker-z.service" in diff
    lying = {path: file for path, file in old.items() if path.startswith("/opt/lodger")}
    assert difference(replace(there, stored=(*there.stored, "f0"), files={**there.files, **lying}), release) == ""


def test_a_difference_ends_every_line_even_where_a_file_does_not(fleet: Fleet) -> None:
    release = render(fleet, fleet.hosts["node1"])
    there = on_host(release)
    path = f"/opt/lodger/releases/{release.id}/worker-a/compose.yml"
    cut = HostFile(there.files[path].content.rstrip("\n"), 0o644, "root")
    diff = difference(replace(there, files={**there.files, path: cut}), release)
    assert diff.endswith("\n")
    assert len([line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]) == 2
