"""What a manifest says of a service, and what is read from one that another Lodger wrote."""

import json
from dataclasses import replace

import pytest

from lodger.errors import Refused
from lodger.host.facts.deployed import Deployed, HostFile
from lodger.release.manifest import manifest_text, services
from lodger.release.service import Service
from tests.unit.readings import deployed, worker

# What the first release with pools and keys wrote, key by key.
KEYS = {
    *("name", "kind", "unit", "container", "config", "image", "port", "gpus", "start", "stop"),
    *("pool", "listen", "identity", "address", "key"),
}


def stored(service: Service) -> Deployed:
    text = manifest_text("r1", "node1", "abc", [service], {})
    return deployed(("r1",), files={"/opt/lodger/releases/r1/manifest.json": HostFile(text, 0o644, "root")})


def test_a_service_of_the_first_engine_is_written_as_an_earlier_lodger_reads_it() -> None:
    (written,) = json.loads(manifest_text("r1", "node1", "abc", [worker()], {}))["services"]
    assert set(written) == KEYS
    assert services(stored(worker()), "r1") == {"worker-a": worker()}
    assert worker().engine == "sglang"


def test_an_engine_that_is_not_known_here_is_refused() -> None:
    with pytest.raises(Refused, match=r"other-engine"):
        services(stored(replace(worker(), engine="other-engine")), "r1")
