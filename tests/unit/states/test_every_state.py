"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

import pytest

from lodger.host import facts
from lodger.host.facts.weights import Folder
from lodger.release.manifest import services
from lodger.release.service import Service
from lodger.states.base import NoUndo, State
from lodger.states.neighbour_replaced import NeighbourReplaced
from lodger.states.old_releases_pruned import OldReleasesPruned
from lodger.states.release_current import ReleaseCurrent
from lodger.states.weights_present import WeightsPresent
from tests.unit.readings import deployed, on_gpus, ours, process, readings, release_files, router, serving
from tests.unit.states.support_states import (
    BEFORE,
    BY_HAND,
    CREATING,
    DOCKER,
    ENABLED,
    FIT,
    FREE,
    GONE,
    HAND_MADE,
    IMAGE,
    INSTALLED,
    MACHINE,
    MEMBERS,
    OLD,
    READY,
    REFERENCE,
    REPLACED,
    RESTORED,
    RIGHT,
    SMOKED,
    STAGED,
    VLLM,
    VLLM_UNIT,
    A,
    fit,
    host,
)


def test_services_are_read_back_from_a_manifest() -> None:
    data = deployed(("r1",), files=release_files("r1", A, router()))
    assert services(data, "r1") == {"worker-a": A, "router": router()}
    assert services(data, "") == {}
    with pytest.raises(TypeError):
        Service.load({"name": "x", "gpus": []})


ALL = [
    *(
        FIT,
        IMAGE,
        WeightsPresent("m", "/m", 1),
        STAGED,
        ReleaseCurrent("r"),
        OldReleasesPruned("r"),
        REPLACED,
        BY_HAND,
        RESTORED,
    ),
    *(NeighbourReplaced("compose", "app"), INSTALLED, FREE, READY, GONE, SMOKED),
]


@pytest.mark.parametrize("state", ALL, ids=lambda state: state.name)
@pytest.mark.parametrize("outdated", [True, False])
def test_a_state_names_all_facts_that_it_reads(state: State, outdated: bool) -> None:
    """It is given no others: one that it forgot would end a run half way."""
    everything = host(
        **{"units": [ENABLED], "unit": ENABLED, "containers": [ours(OLD if outdated else A), HAND_MADE, *MEMBERS]},
        deployed=BEFORE if outdated else RIGHT,
        processes=[CREATING, process(800, devices=on_gpus(0))] if outdated else [],
        serving=serving(config="c0" if outdated else "c1"),
    )
    everything[facts.MACHINE], everything[facts.DOCKER], everything[facts.CURL] = MACHINE, DOCKER, not outdated
    everything[VLLM_UNIT] = VLLM
    everything[facts.images_fact([REFERENCE])] = {REFERENCE: not outdated}
    everything[facts.folder_fact("/m")] = Folder(not outdated, 1)
    for path in ("/opt/lodger", "/var/lib/lodger", "/etc/systemd/system", "/var/lib/docker"):
        everything[facts.disk_fact(path)] = facts.Disk(2**40, True)
    read = readings({fact: everything[fact] for fact in state.facts})
    state.missing(read)
    state.blockers(read)
    state.act(read)
    state.stops(read)
    state.touched(read)
    state.hopeless(read)
    state.progress(read)
    state.evidence(read)
    read = readings({fact: everything[fact] for fact in (*state.facts, *state.undo_facts)})
    state.undo(read, read)
    state.undone(read, read)
    state.undo_hopeless(read, read)
    state.evidence(read)


@pytest.mark.parametrize("state", [FIT, WeightsPresent("m", "/m", 1)])
def test_a_state_that_can_only_be_found_does_nothing(state: State) -> None:
    read = fit(curl=False)
    assert state.act(read) == []
    assert isinstance(state.undo(read, read), NoUndo)
