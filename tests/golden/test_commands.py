"""The commands that a dry run shows, as an operator would read and could type them, in the order of the run.

Readings of hosts with nothing of ours are a twin's own (tests/unit/data/facts). What changes with every template, the
release's id, hashes and sizes, is replaced by a word: the rendered files have golden files of their own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from lodger import inventory
from lodger.host import facts
from lodger.host.command import Command
from lodger.host.facts.base import Facts
from lodger.inventory import Fleet
from lodger.plans import runbook
from lodger.plans.deploy import Deploy
from lodger.plans.rollback import Rollback
from lodger.release.render import render
from lodger.states.base import Step
from lodger.states.pool_complete import PoolComplete
from lodger.states.pool_place import PoolPlace, RouterMembers
from tests.unit.readings import (
    base,
    captured,
    deployed,
    driver,
    in_container,
    installed,
    on_gpus,
    ours,
    readings,
    serving,
    unit,
    worker,
)

HOSTS = Path(__file__).parents[2] / "hosts"
Golden = Callable[[str, Mapping[str, str]], None]


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = inventory.load(HOSTS)
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    return fleet.model_copy(update={"images": images})


def shown(steps: Sequence[Step], read: Facts, words: Mapping[str, str]) -> str:
    """Return each state, whether it holds, and the commands that would establish it now, each with its reason."""
    lines: list[str] = []
    for step in steps:
        missing = step.state.missing(read)
        lines.append(f"{step.state.name}: {missing or 'satisfied'}")
        for action in step.state.act(read) if missing else ():
            lines += [f"    # {action.why}"] if isinstance(action, Command) else []
            lines.append(f"    {action}")
    text = "\n".join(lines) + "\n"
    for old, new in words.items():
        text = text.replace(old, new)
    return re.sub(r"<<\d+ bytes of input>>", "<<N bytes of input>>", text)


@pytest.mark.parametrize("name", ["node1", "node2"])
def test_deploy_on_a_fresh_host(name: str, fleet: Fleet, golden: Golden) -> None:
    host = fleet.hosts[name]
    request = Deploy(fleet, host, runbook.load("deploy"), "0" * 40, contains=lambda _: False)
    read = captured(name)
    images = [image.reference for image in fleet.images.values()]
    there = [
        *((facts.images_fact([image]).name, f"no {image}\n") for image in images),
        *(
            (facts.folder_fact(f"{host.models_dir}/{model.directory}").name, f"yes\nno\n{model.size_bytes or 1}\n")
            for model in fleet.models.values()
        ),
        *(
            (fact.name, "")
            for service in request.release.by_name.values()
            for place in (PoolPlace.of(request.guess, service),)
            for fact in (place.rotation, place.identities)
        ),
        *(
            (fact.name, "")
            for service in request.release.by_name.values()
            if service.kind == "router"
            for fact in PoolComplete(RouterMembers.of(request.guess, service)).facts
        ),
    ]
    read = Facts({**read.sections, **{fact: (0, text) for fact, text in there}}, name)
    steps = request.plan(read, None).steps
    assert not [blocker for step in steps for blocker in step.state.blockers(read) if not blocker.awaits]
    text = shown(steps, read, {render(fleet, host).id: "RELEASE", "5" * 64: "DIGEST"})
    golden(f"commands/deploy-{name}", {"plan.txt": text})


def test_rollback_to_nothing_brings_the_replaced_neighbour_back(fleet: Fleet, golden: Golden) -> None:
    read = captured("deployed")
    steps = Rollback(fleet, fleet.hosts["node1"], runbook.load("rollback")).plan(read, None).steps
    golden("commands/rollback-to-nothing", {"plan.txt": shown(steps, read, {})})


def test_rollback_to_the_release_before(fleet: Fleet, golden: Golden) -> None:
    before, after = worker("a", config="c1"), worker("a", config="c2", image="registry/sglang@sha256:2")
    files = installed("0a01", before) | installed("0b02", after)
    now = deployed(("0a01", "0b02"), links={"worker-a": "0b02"}, files=files)
    engine = in_container(90, ours(after), devices=on_gpus(0, 1, 2, 3))
    request = Rollback(fleet, fleet.hosts["node1"], runbook.load("rollback"))
    read = readings(
        base(deployed=now, containers=[ours(after)], units=[unit(after.unit)], processes=[engine])
        | {
            facts.MACHINE: captured("deployed")[facts.MACHINE],
            facts.DRIVER: driver(22000, 22000, 22000, 22000),
            facts.unit_fact(after.unit): unit(after.unit),
            facts.serving_fact(after.container, after.unit, "node1"): serving(config="c2"),
            facts.images_fact([before.image]): {before.image: True},
            facts.disk_fact("/var/lib/docker"): facts.Disk(2**40, True),
            PoolPlace().rotation: {},
            PoolPlace().identities: {},
        }
    )
    steps = request.plan(read, None).steps
    golden("commands/rollback-to-the-release-before", {"plan.txt": shown(steps, read, {})})
