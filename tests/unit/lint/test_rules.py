"""Every rule by its own examples; the pitfalls that cost the first deployment its hours."""

import re
from pathlib import Path

import pytest

from lodger import inventory, lint
from lodger.checks import lint as checks
from lodger.engines import ENGINES
from tests.unit.lint.support_lint import HOSTS, ROOT, RULES, Edit, errors, fired


def test_no_two_rules_have_one_number() -> None:
    assert len(RULES) == len(lint.RULES) + sum(len(engine.rules()) for engine in ENGINES.values())


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert fired(tmp_path, "") == []


@pytest.mark.parametrize(("number", "change"), [(rule.number, change) for rule in RULES.values() for change in rule.bad])
def test_a_bad_example_is_found_by_its_rule_and_no_other(number: str, change: str, tmp_path: Path) -> None:
    assert fired(tmp_path, change) == [number]


@pytest.mark.parametrize(("number", "change"), [(rule.number, change) for rule in RULES.values() for change in rule.good])
def test_a_good_example_is_not_found_by_its_rule(number: str, change: str, tmp_path: Path) -> None:
    assert number not in fired(tmp_path, change)


@pytest.mark.parametrize("number", RULES)
def test_every_rule_is_whole(number: str) -> None:
    rule = RULES[number]
    assert rule.bad
    assert rule.good
    assert rule.summary.endswith(".")
    assert re.fullmatch(r"L\d{3}", number)
    assert f'<a id="{number.lower()}"></a>' in (ROOT / "README-ops.md").read_text(), "the link in its findings leads nowhere"


def test_the_manual_lists_no_rule_that_is_not_there() -> None:
    assert set(re.findall(r'<a id="(l\d+)"></a>', (ROOT / "README-ops.md").read_text())) == {number.lower() for number in RULES}


def test_the_sites_own_inventory_has_no_error() -> None:
    assert errors(HOSTS) == []


def test_pitfall_2_a_driver_by_its_metapackage(hosts: Path) -> None:
    (hosts / "runbooks").mkdir()
    (hosts / "runbooks" / "upgrade.md").write_text("# Upgrade\n\n```state\nrun: apt-get install -y nvidia-driver-580\n```\n")
    (found,) = errors(hosts)
    assert (found.rule, found.file, found.line) == ("L047", str(hosts / "runbooks" / "upgrade.md"), 4)
    assert "libnvidia-compute-580" in found.instead


def test_pitfall_3_a_module_unloaded_while_a_neighbour_has_the_gpus_open(hosts: Path) -> None:
    (hosts / "runbooks").mkdir()
    (hosts / "runbooks" / "swap.md").write_text("```state\nrun: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia\n```\n")
    (found,) = errors(hosts)
    assert (found.rule, found.line) == ("L048", 2)


def test_only_the_hosts_in_question_are_judged(hosts: Path, edit: Edit) -> None:
    edit("node1.yml", 'driver: "580.126.09"', 'driver: "545.23.06"')
    fleet = inventory.load(hosts)
    assert lint.errors(checks.check(fleet, [fleet.hosts["node1"]]))
    assert not lint.errors(checks.check(fleet, [fleet.hosts["node2"]]))
