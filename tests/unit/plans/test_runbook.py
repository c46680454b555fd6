"""Every shipped runbook reads; each mistake in one is named with file and line, never with a traceback."""

import contextlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lodger import inventory
from lodger.checkout import CODE
from lodger.errors import UsageError
from lodger.host import facts, nvidia
from lodger.host.command import Secret
from lodger.inventory.schema import Warn
from lodger.inventory.values import give_names
from lodger.plans import runbook
from lodger.plans.expand import expand, names
from lodger.plans.runbook import Block, Runbook, parse
from lodger.release.api_keys import ApiKey
from lodger.states.neighbour_status import NeighbourStatus
from lodger.states.registry import states
from lodger.states.shell import Shell
from lodger.states.target import Target, TargetOptions, TargetRelease
from tests.unit.readings import SMOKE, router, worker

SHIPPED = sorted(path.stem for path in runbook.FOLDER.glob("*.md"))
WITNESSES = CODE / "tests/host"
FRONT = "---\ntitle: T\n---\n"


def book(text: str) -> Runbook:
    return parse(FRONT + text, "t", "runbooks/t.md")


def block(yaml: str) -> Runbook:
    return book(f"# H\n\n```state\n{yaml}\n```\n")


def test_there_are_runbooks() -> None:
    assert {"deploy", "rollback"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_runbook_reads_and_can_be_followed_by_hand(name: str) -> None:
    found = runbook.load(name)
    assert found.title
    assert found.risk
    assert found.duration
    assert found.text == (runbook.FOLDER / f"{name}.md").read_text()
    for one in found.blocks:
        assert one.heading, f"the block in line {one.line} stands under no heading"
        assert set(one.witnesses) <= {path.name for path in WITNESSES.glob("test_*.py")}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_block_knows_its_line(name: str) -> None:
    found = runbook.load(name)
    lines = found.text.split("\n")
    assert [lines[one.line - 1] for one in found.blocks] == ["```state"] * len(found.blocks)


def test_a_check_of_several_lines_is_read_and_named_in_one() -> None:
    for last, missing in (("true", ""), ("exit 3", "`the check of swap_off` fails")):
        state = Shell("swap_off", f"set -e\n{last}\n", "swapoff -a")
        said = subprocess.run(["sh", "-c", facts.script(state.facts)], capture_output=True, text=True, check=True).stdout
        assert state.missing(facts.parse(said)) == missing


def test_a_block_is_read() -> None:
    found = parse(
        "---\ntitle: Mend it\nhosts: [node1, node2]\nrisk: none\nduration: a minute\n---\n# Mend\n\nProse.\n\n## Serve\n\n"
        "```state\nstates: [service_installed, worker_ready]\neach: worker\nwitness: [test_worker.py]\n```\n\n"
        "```sh\nstate: not for us\n```\n\n~~~state\nstate: host_fit\n~~~\n",
        "mend",
        "mend.md",
    )
    assert (found.title, found.hosts, found.risk, found.duration) == ("Mend it", ("node1", "node2"), "none", "a minute")
    assert found.blocks == (
        Block(("service_installed", "worker_ready"), "worker", ("test_worker.py",), "Serve", 13),
        Block(("host_fit",), "", (), "Serve", 23),
    )


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("", "a block must have either `state:` or `states:`"),
        ("host_fit", "a block must have either `state:` or `states:`"),
        ("- host_fit", "a block must have either `state:` or `states:`"),
        ("each: worker", "a block must have either `state:` or `states:`"),
        ("state: host_fit\nstates: [host_fit]", "a block must have either `state:` or `states:`"),
        ("state: no_such_state", "there is no state `no_such_state`; the states are: dpkg_free, driver_installed"),
        ("state:", "there is no state `None`"),
        ("state: [host_fit]", "there is no state `['host_fit']`"),
        ("states: host_fit", "`states` must be a list of names: [one, another]"),
        ("states: []", "`states` must be a list of names: [one, another]"),
        ("states:", "`states` must be a list of names: [one, another]"),
        ("states: [{host_fit: 1}]", "`states` must be a list of names: [one, another]"),
        ("states: [1]", "`states` must be a list of names: [one, another]"),
        ("state: host_fit\nwitness: test_driver.py", "`witness` must be a list of names: [one, another]"),
        ("state: host_fit\nwitnesses: [test_driver.py]", "`witnesses` is not known here; known are: each, state"),
        ("state: host_fit\n1: x", "`1` is not known here"),
        ("state: host_fit\n1: x\ny: z", "`1` is not known here"),
        ("state: host_fit\neach: worker", "`host_fit` needs a block with no `each:`"),
        ("state: image_present", "`image_present` needs `each: image`"),
        ("state: worker_ready\neach: router", "`worker_ready` needs `each: worker`"),
        ("state: service_installed\neach: image", "`service_installed` needs `each: service`"),
        ("state: service_installed\neach: planet", "`service_installed` needs `each: service`"),
        ("state: host_fit\nstate: host_fit", "the block is not YAML: found duplicate key"),
        ("state: shel\nname: a\ncheck: test", "there is no state `shel`"),
        ("state: [", "the block is not YAML"),
        ("\tstate: x", "the block is not YAML"),
    ],
)
def test_a_mistake_in_a_block_is_named_with_file_and_line(yaml: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        block(yaml)
    assert caught.value.what.startswith(f"runbooks/t.md:6: {said}")
    assert "\n" not in caught.value.what


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        book("```state\nstate: a\n```\n\n```state\nstate: host_fit\n```\n\n```state\nstate: b\n```\n")
    assert re.findall(r"^runbooks/t\.md:(\d+): there is no state `(\w)`", caught.value.what, re.MULTILINE) == [
        ("4", "a"),
        ("12", "b"),
    ]


SHELL = "state: shell\nname: clean\ncheck: test -e /x\nrun: echo\n"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("undo: no", "undo", "no"),
        ("undo: 'on'", "undo", "on"),
        ("undo: 12:30", "undo", "12:30"),
        ("undo: 1_000", "undo", "1_000"),
        ("undo: 0x10", "undo", "0x10"),
        ("undo: 2026-09-19", "undo", "2026-09-19"),
        ("undo: '7'", "undo", "7"),
        ("undo: |\n  yes\n  no", "undo", "yes\nno\n"),
        ("timeout: 90", "timeout", 90.0),
    ],
)
def test_a_block_means_what_it_looks_like(line: str, key: str, value: object) -> None:
    assert block(SHELL + line).blocks[0].shell[key] == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("undo: true", "`undo` must be a text, in quotes or after `|`"),
        ("undo: 12", "`undo` must be a text, in quotes or after `|`"),
        ("undo: 1.5", "`undo` must be a text, in quotes or after `|`"),
        ("undo: ~", "`undo` must be a text, in quotes or after `|`"),
        ("timeout: 010", "`timeout` must be a whole number of seconds"),  # 8 to PyYAML
        ("timeout: 1:30", "`timeout` must be a whole number of seconds"),  # 90 to PyYAML
        ("timeout: 1_000", "`timeout` must be a whole number of seconds"),
        ("timeout: yes", "`timeout` must be a whole number of seconds"),
        ("on: x", "`on` is not known in a shell state"),  # the key True to PyYAML
        ("undo: !!int x", "the block is not YAML: "),
        ("undo: !!python/name:os.system", "the block is not YAML: "),
    ],
)
def test_what_readers_take_for_different_values_is_never_guessed_at(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        block(SHELL + line)
    assert said in caught.value.what


def test_front_matter_means_what_it_looks_like() -> None:
    front = "---\ntitle: on\nhosts: [no, node1]\nrisk: off\nduration: 1:30\n---\n"
    found = parse(f"{front}# H\n\n```state\nstate: host_fit\n```\n", "t", "t.md")
    assert (found.title, found.hosts, found.risk, found.duration) == ("on", ("no", "node1"), "off", "1:30")


@given(st.text("0123456789abefnoxtruyslTNF_:.+-~ ", max_size=9))
def test_a_value_is_that_of_yaml_1_2_or_the_text_itself(written: str) -> None:
    line = f"a: {written}"
    try:
        reference = YAML(typ="safe", pure=True).load(line)
    except YAMLError:
        return
    with contextlib.suppress(ValueError):
        found = runbook._values(line)  # front matter and blocks are read by it alone
        assert found == reference or found == {"a": written.strip()}, written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "runbooks/t.md:1: it does not begin with front matter"),
        ("# H\n---\n", "runbooks/t.md:1: it does not begin with front matter"),
        ("---\ntitle: x\n", "runbooks/t.md:1: it does not begin with front matter"),
        ("---\ntitle: [\n---\n", "runbooks/t.md:1: its front matter is not YAML"),
        ("---\ntitle: a\ntitle: b\n---\n", "runbooks/t.md:1: its front matter is not YAML"),
        ("---\njust words\n---\n", "runbooks/t.md:1: its front matter has no settings"),
        ("---\n---\n", "runbooks/t.md:1: its front matter has no settings"),
        ("---\n- a\n---\n", "runbooks/t.md:1: its front matter has no settings"),
        ("---\ntitle: x\n---\n# nothing to do\n", "runbooks/t.md:1: it has no ```state block"),
    ],
)
def test_a_mistake_in_the_document_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "t", "runbooks/t.md")
    assert caught.value.what == said


def test_an_unknown_runbook_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        runbook.load("no-such")
    assert caught.value.what == f"there is no runbook no-such in {runbook.FOLDER}"
    assert caught.value.hint == f"the runbooks are: {', '.join(SHIPPED)}"
    with pytest.raises(UsageError):
        runbook.load("../README", runbook.FOLDER)


def test_a_runbook_of_the_operators_goes_before_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "reboot.md").write_text((runbook.FOLDER / "reboot.md").read_text().replace("A planned reboot", "Ours"))
    assert runbook.load("reboot", tmp_path, runbook.FOLDER).title == "Ours"
    assert runbook.load("deploy", tmp_path, runbook.FOLDER) == runbook.load("deploy")


# ---------------------------------------------------------------- expanding

A = worker("a", gpus=(0, 1, 2, 3))
B = worker("b", port=30001, gpus=(4, 5, 6, 7))
OLD = worker("old", port=30009)
ROUTER = router()
FLEET = inventory.load(CODE / "hosts")
NODE2 = FLEET.hosts["node2"]
RECORDED = NeighbourStatus("container", "old-sglang", True, True)
SERVICES = {"worker-a": A, "worker-b": B, "router": ROUTER}
AIGC = NODE2.neighbours["vllm-qwen.service"].model_copy(
    update={"policy": "pause", "kind": "program", "warn": Warn(command="wall soon")}
)
AT = Target(
    FLEET,
    NODE2.model_copy(update={"neighbours": give_names({**NODE2.neighbours, "aigc": AIGC})}),
    TargetRelease("r2", SERVICES, keys=(ApiKey("qwen38", "0123abcd", Secret("k" * 32)),), smoke=dict.fromkeys(SERVICES, SMOKE)),
    present={**SERVICES, "worker-old": OLD},
    options=TargetOptions(restore=(RECORDED,)),
)


def test_every_state_can_be_made_and_has_a_name_of_its_own() -> None:
    made = [(name, one.make(AT, item)) for name, one in states().items() for item in AT.items(one.each)]
    assert {name for name, _ in made} == set(states())
    assert all(state.name.partition("(")[0] == name for name, state in made)
    everything = [state.name for _, state in made]
    assert len(set(everything)) == len(everything)


def test_deploy_finishes_one_worker_before_the_next_and_the_release_last() -> None:
    assert names(expand(runbook.load("deploy"), AT)) == [
        "host_fit",
        "image_present(router)",
        "image_present(sglang)",
        "weights_present(qwen3.8-27b-dflash2)",
        "weights_present(qwen3.8-27b-fp8)",
        "release_staged",
        "key_in_place(qwen38)",
        "leaver_drained(worker-old)",
        "service_gone(worker-old)",
        "neighbour_replaced(vllm-qwen.service)",
        "worker_drained(a)",
        "service_installed(worker-a)",
        "gpus_free(worker-a)",
        "worker_ready(a)",
        "smoke_passed(a)",
        "worker_joined(a)",
        "worker_drained(b)",
        "service_installed(worker-b)",
        "gpus_free(worker-b)",
        "worker_ready(b)",
        "smoke_passed(b)",
        "worker_joined(b)",
        "service_installed(router)",
        "router_ready(router)",
        "pool_complete",
        "release_current",
        "old_releases_pruned",
    ]


@pytest.mark.parametrize("name", ["driver-upgrade", "reboot"])
def test_the_drivers_daemons_are_stopped_last_and_back_first_each_once(name: str) -> None:
    """A neighbour's container on a machine with NVSwitch starts in vain before the driver's fabric manager."""
    dcgm = {"nvidia-dcgm.service": NODE2.neighbours["vllm-qwen.service"].model_copy(update={"policy": "pause"})}
    host = AT.host.model_copy(update={"neighbours": give_names({**AT.host.neighbours, **dcgm})})
    found = names(expand(runbook.load(name), replace(AT, host=host)))
    paused, resumed = (
        [one.removeprefix(f"{state}(").rstrip(")") for one in found if one.startswith(f"{state}(")]
        for state in ("neighbour_paused", "neighbour_resumed")
    )
    assert paused == [*host.neighbours, *(unit for unit in nvidia.DAEMON_UNITS if unit not in dcgm)]
    assert paused[-1] == "nvidia-persistenced.service"
    assert resumed == paused[::-1]


def test_rollback_ends_with_the_restored_neighbour_before_the_record() -> None:
    found = names(expand(runbook.load("rollback"), AT))
    assert found[-3:] == ["neighbour_restored(old-sglang)", "release_current", "old_releases_pruned"]
    assert not {
        "host_fit",
        "release_staged",
        "weights_present(qwen3.8-27b-fp8)",
        "neighbour_replaced(vllm-qwen.service)",
    } & set(found)


def test_pools_are_held_for_each_service_until_its_last_state() -> None:
    steps = {step.state.name: step for step in expand(runbook.load("deploy"), AT)}
    assert {step.pools for name, step in steps.items() if "(a)" in name or "(worker-a)" in name} == {("qwen38",)}
    assert [name for name, step in steps.items() if step.frees_pools] == [
        "worker_joined(a)",
        "worker_joined(b)",
        "pool_complete",
    ]
    assert steps["release_staged"].pools == ()
    assert steps["service_gone(worker-old)"].pools == ()


@pytest.mark.parametrize("name", ["driver-upgrade", "reboot"])
@pytest.mark.parametrize("pools", [("qwen38", "qwen38"), ("qwen38", "another")])
def test_a_turn_is_kept_until_the_last_worker_that_was_stopped_is_back(name: str, pools: tuple[str, str]) -> None:
    """Between two blocks nobody of the pool may serve here: another host that stopped its worker then would leave none."""
    services = {**SERVICES, "worker-a": replace(A, pool=pools[0]), "worker-b": replace(B, pool=pools[1])}
    target = replace(AT, release=replace(AT.release, services=services))
    steps = [step for step in expand(runbook.load(name), target) if step.item.startswith("worker-")]
    assert names(steps)[0] == "worker_leaving(a)"
    assert {step.pools for step in steps} == {tuple(sorted(set(pools)))}
    assert [step.state.name for step in steps if step.frees_pools] == ["worker_returned(b)"]


def test_witnesses_are_asked_after_the_last_state_of_their_group() -> None:
    steps = {step.state.name: step for step in expand(runbook.load("deploy"), AT)}
    assert steps["worker_joined(a)"].witnesses == ("test_worker.py",)
    assert steps["worker_ready(a)"].witnesses == ()
    assert steps["release_current"].heading == "The release is recorded"


def test_a_group_for_nothing_on_this_host_takes_no_step() -> None:
    nothing = Target(FLEET, NODE2, TargetRelease(history=()))
    assert names(expand(runbook.load("rollback"), nothing)) == ["release_current", "old_releases_pruned"]
