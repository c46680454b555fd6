"""A service as manifests keep it: of this version, of a later one with more to say, and of none."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodger.errors import Refused
from lodger.host.facts.deployed import HostFile
from lodger.release.manifest import services
from lodger.release.service import Service
from tests.unit import readings

KEYS = {field.name for field in fields(Service)}
REQUIRED = sorted(field.name for field in fields(Service) if MISSING is field.default and MISSING is field.default_factory)

words = st.text(max_size=8)
seconds = st.floats(0, 1e5)
a_service = st.builds(
    Service,
    **dict.fromkeys(("name", "kind", "unit", "container", "config", "image", "pool", "listen", "address", "key"), words),
    port=st.integers(1, 65535),
    gpus=st.lists(st.integers(0, 15), max_size=4).map(tuple),
    start=seconds,
    stop=seconds,
    identity=st.dictionaries(words, words, max_size=3),
)
scalars = st.none() | st.booleans() | st.integers() | words
later_keys = st.dictionaries(words.filter(lambda name: name not in KEYS), scalars | st.lists(scalars, max_size=2), max_size=4)


def kept(service: Service) -> dict[str, Any]:
    """What stands of it in a manifest on a host."""
    data: dict[str, Any] = json.loads(json.dumps(asdict(service)))
    return data


@given(service=a_service, later=later_keys)
def test_what_a_later_version_adds_is_passed_over(service: Service, later: dict[str, Any]) -> None:
    assert Service.load({**later, **kept(service)}) == service


@given(service=a_service, missing=st.sampled_from(REQUIRED), later=later_keys)
def test_a_service_that_lacks_what_nothing_can_stand_for_is_refused(
    service: Service, missing: str, later: dict[str, Any]
) -> None:
    data = {**later, **kept(service)}
    del data[missing]
    with pytest.raises((KeyError, TypeError), match=missing):
        Service.load(data)


@given(service=a_service)
def test_what_earlier_versions_did_not_write_has_a_default(service: Service) -> None:
    data = {name: value for name, value in kept(service).items() if name in REQUIRED}
    bare = replace(service, pool="", listen="0.0.0.0", identity={}, address="", key="")  # noqa: S104  # a value, nothing listens
    assert Service.load(data) == bare


@pytest.mark.parametrize("broken", [{"gpus": None}, {"gpus": 3}])
def test_a_manifest_that_describes_no_service_is_a_refusal_with_its_path(broken: dict[str, Any]) -> None:
    manifest = json.dumps({"services": [{**kept(readings.worker()), **broken}]})
    file = HostFile(manifest, 0o644, "root")
    deployed = readings.deployed(("r1",), files={"/opt/lodger/releases/r1/manifest.json": file})
    with pytest.raises(Refused) as refused:
        services(deployed, "r1")
    assert "/opt/lodger/releases/r1/manifest.json" in str(refused.value.cause)
