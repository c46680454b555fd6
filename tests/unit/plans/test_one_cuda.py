"""Which CUDA has an image? Rules, doctor and deploy answer the same.

A deploy asked only the declaration: it was content with an image whose tag says CUDA 12.9 and whose declaration is missing or
another, where doctor and rules refused it.
"""

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.checks import doctor, lint
from lodger.host import facts
from lodger.inventory import Fleet
from lodger.plans import runbook
from lodger.plans.deploy import Deploy
from lodger.states.host_fit import HostFit
from tests.unit.checks.doctor.support_doctor import patient
from tests.unit.readings import base, deployed, driver, readings
from tests.unit.states.support_states import fit

TOO_NEW = "the image's CUDA is too new for the driver"
# A driver that runs CUDA up to ..., and the oldest that runs the next one.
BEFORE = {"12.4": "545.23.06", "12.9": "570.86.15", "13.0": "575.51.03"}
RUNS = {"12.4": "550.54.14", "12.9": "575.51.03", "13.0": "580.126.09"}


def answers(tag: str, declared: str | None, loaded: str) -> list[bool]:
    """Return who finds the image too new for driver ``loaded``: the rules, doctor, a deploy."""
    found = inventory.load(CODE / "hosts")
    own = {"tag": tag, "cuda": declared}
    images = {
        name: image.model_copy(update={"digest": f"sha256:{'5' * 64}", **(own if name == "sglang" else {})})
        for name, image in found.images.items()
    }
    host = found.hosts["node1"].model_copy(update={"driver": loaded, "machine_id": "0" * 32})
    fleet: Fleet = found.model_copy(update={"images": images, "hosts": {**found.hosts, "node1": host}})
    at = patient(fleet, host, {facts.DRIVER: driver(1, 1, 1, 1, loaded=loaded)})
    request = Deploy(fleet, host, runbook.load("deploy"), "r1", contains=lambda _: True)
    (fits, *_) = (step.state for step in request.plan(readings(base(deployed=deployed())), None).steps)
    assert isinstance(fits, HostFit)
    return [
        any(one.rule == "L001" for one in lint.check(fleet, [host])),
        any(one.what == TOO_NEW for one in doctor.judge(at)),
        any(one.what == TOO_NEW for one in fits.blockers(fit(driver=driver(4, 4, 4, 4, loaded=loaded)))),
    ]


@pytest.mark.parametrize(
    ("tag", "declared", "cuda"),
    [
        ("v0.5.19-cu129", None, "12.9"),
        ("v0.5.19-cu129", "12.4", "12.9"),
        ("v0.5.19-cu129", "13.0", "12.9"),
        ("v0.5.20", "12.9", "13.0"),  # what is usual from then on; the declaration was left as it was
        ("v0.5.18", "12.4", "12.4"),
        ("ours-7", "12.9", "12.9"),
    ],
)
def test_an_image_is_too_new_for_a_driver_or_it_is_not_whoever_is_asked(tag: str, declared: str | None, cuda: str) -> None:
    assert answers(tag, declared, BEFORE[cuda]) == [True, True, True]
    assert answers(tag, declared, RUNS[cuda]) == [False, False, False]
