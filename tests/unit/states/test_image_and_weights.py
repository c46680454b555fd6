"""The decisions of each state on hand-made readings: what is missing, what forbids it, what it does, how it is undone."""

import pytest

from lodger.host import facts
from lodger.host.facts.base import Facts
from lodger.host.facts.weights import Folder
from lodger.states.base import NoUndo
from lodger.states.weights_present import WeightsPresent
from tests.unit.readings import readings
from tests.unit.states.support_states import IMAGE, REFERENCE, shown, whats


def image(*, there: bool, free: int = 2**40) -> Facts:
    return readings(
        {facts.images_fact([REFERENCE]): {REFERENCE: there}, facts.disk_fact("/var/lib/docker"): facts.Disk(free, True)}
    )


def test_an_image_that_is_there_needs_no_room() -> None:
    read = image(there=True, free=0)
    assert (IMAGE.missing(read), IMAGE.blockers(read)) == ("", [])


def test_an_image_that_is_not_there_is_noted_as_ours_before_it_is_pulled() -> None:
    read = image(there=False)
    assert REFERENCE in IMAGE.missing(read)
    assert IMAGE.blockers(read) == []
    note, pull = shown(IMAGE.act(read))
    assert ">> /var/lib/lodger/images" in note
    assert pull == f"docker pull {REFERENCE}"
    assert isinstance(IMAGE.undo(read, read), NoUndo)


def test_no_room_for_an_image_is_refused_with_both_numbers() -> None:
    found = IMAGE.blockers(image(there=False, free=2**30))
    assert whats(found) == [f"there is no room for the image {REFERENCE}"]
    assert found[0].cause == "1.0 GiB are free, about 40.0 GiB are needed"


@pytest.mark.parametrize(
    ("folder", "size", "said"),
    [
        (Folder(True, 100), 100, ""),
        (Folder(True, 101), 100, ""),
        (Folder(True, 5), None, ""),
        (Folder(True, 100, True), 100, "the weights of m are of two revisions: a fetch was cut short in /data/models/M"),
        (Folder(False, 0), 100, "the weights of m are missing: /data/models/M has no config.json"),
        (Folder(True, 99), 100, "the weights of m are incomplete: 99 of 100 bytes in /data/models/M"),
        (Folder(True, 99, lost=0), 100, ""),
        (
            Folder(True, 100, lost=1),
            100,
            "the weights of m are incomplete: 1 fetched files are missing in /data/models/M",
        ),
    ],
)
def test_weights_are_only_looked_at(folder: Folder, size: int | None, said: str) -> None:
    state = WeightsPresent("m", "/data/models/M", size)
    read = readings({facts.folder_fact("/data/models/M"): folder})
    assert state.missing(read) == said
    assert whats(state.blockers(read)) == ([said] if said else [])
