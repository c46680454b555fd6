"""Silencing a rule, and what a task does with what rules find."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lodger import inventory, lint
from lodger.checks import lint as checks
from lodger.errors import InventoryError
from lodger.lint import Severity
from tests.unit.lint.support_lint import HOSTS, ROOT, Edit, errors


@pytest.mark.parametrize(
    "comment",
    [
        ("    mem_fraction_static: 0.80", "    mem_fraction_static: 0.85  # allow L020: to see it fail"),
        ("    mem_fraction_static: 0.80", "    # allow L020: to see it fail\n    # and more\n    mem_fraction_static: 0.85"),
    ],
)
def test_a_comment_with_a_reason_allows_one_finding(comment: tuple[str, str], hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", *comment)
    assert errors(hosts) == []
    notes = [one for one in checks.check(inventory.load(hosts)) if one.rule == "L020"]
    assert {one.severity for one in notes} == {Severity.NOTE}
    assert all("(allowed: to see it fail)" in one.reason for one in notes)


def test_a_comment_above_a_pool_allows_what_is_below_it(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "    mem_fraction_static: 0.80", "    mem_fraction_static: 0.85")
    edit("fleet.yml", "  qwen38:\n", "  # allow L020: to see it fail\n  qwen38:\n")
    assert errors(hosts) == []


@pytest.mark.parametrize("comment", ["# allow L021: another rule", "# allow L020", "# allow L020:", "# allows L020: x"])
def test_a_comment_about_something_else_allows_nothing(comment: str, hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "mem_fraction_static: 0.80", f"mem_fraction_static: 0.85 {comment}\n    #")
    assert {one.rule for one in errors(hosts)} == {"L020"}


def test_errors_are_refused_with_2_and_the_way_out(hosts: Path, edit: Edit) -> None:
    edit("fleet.yml", "    tool_call_parser: qwen3_coder", "    #")
    with pytest.raises(InventoryError) as caught:
        lint.refuse(checks.check(inventory.load(hosts)))
    assert caught.value.exit_code == 2
    assert "L027" in str(caught.value)
    assert "# allow L027: REASON" in caught.value.hint


def test_warnings_are_not_refused() -> None:
    found = checks.check(inventory.load(HOSTS))
    assert found
    lint.refuse(found)


def ops(*arguments: str, hosts: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lodger", *arguments],
        cwd=ROOT,
        env={**os.environ, "LODGER_HOSTS": str(hosts)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_task_prints_findings_and_ends_with_0_or_2(hosts: Path, edit: Edit) -> None:
    done = ops("lint", hosts=hosts)
    assert done.returncode == 0, done.stderr
    assert "warning L045" in done.stdout
    edit("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: 0.85")
    done = ops("lint", "--json", hosts=hosts)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    first = found[0]
    assert (first["rule"], first["severity"], first["link"]) == ("L020", "error", "README-ops.md#l020")
    assert f"mem_fraction_static: {0.85}" in (hosts / "fleet.yml").read_text().splitlines()[first["line"] - 1]


@pytest.mark.parametrize("task", [["deploy"], ["plan"], ["deploy", "--dry-run"], ["render", "--out", "{out}"]])
def test_a_task_refuses_an_error_before_it_contacts_a_host(task: list[str], hosts: Path, edit: Edit, tmp_path: Path) -> None:
    edit("fleet.yml", "mem_fraction_static: 0.80", "mem_fraction_static: 0.85")
    words = [word.format(out=tmp_path / "out") for word in task]
    done = ops(*words, "--host", "node1", hosts=hosts)
    assert done.returncode == 2, done.stderr
    assert "L020" in done.stderr
    assert "cannot be reached" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_task_tells_warnings_once_and_goes_on(hosts: Path, edit: Edit, tmp_path: Path) -> None:
    edit("fleet.yml", "tag: v0.2.4 ", f'tag: v0.2.4\n    digest: "sha256:{"6" * 64}" ')
    done = ops("render", "--out", str(tmp_path / "out"), "--host", "all", hosts=hosts)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"fleet\.yml:\d+: warning L008", done.stderr)) == 1
    assert (tmp_path / "out" / "node1").is_dir()
