"""Rules about memory, on the inventory of the first deployment."""

from pathlib import Path

from tests.unit.lint.support_lint import Edit, errors


def test_pitfall_4_a_memory_fraction_without_room_for_a_long_prompt(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: 0.85")
    found = errors(hosts)
    assert {one.rule for one in found} == {"L020"}
    assert all("0.82" in one.instead or "0.81" in one.instead for one in found)


def test_forty_eight_requests_are_not_believed(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "max_running_requests: 7", "max_running_requests: 48")
    assert {one.rule for one in errors(hosts)} == {"L021"}
    assert "7 really run at once" in errors(hosts)[0].reason


def test_a_worker_with_a_setting_of_its_own_is_blamed_in_its_own_file(hosts: Path, edit: Edit) -> None:
    edit("node1.yml", "port: 30000}", "port: 30000, engine: {max_running_requests: 30}}")
    (found,) = errors(hosts)
    assert (found.rule, found.file) == ("L021", str(hosts / "node1.yml"))
