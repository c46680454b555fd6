"""The capacity model against published figures, for every kind of model, and what it learns from a running engine."""

import dataclasses
import re
import shutil

import pytest
import yaml

from lab.engine.sglang import capacity as simulated
from lab.engine.sglang import model as simulated_models
from lab.engine.sglang import options as simulated_options
from lodger import capacity
from lodger.capacity import GpuMemory, measured
from lodger.engines.sglang.capacity.subject import SglangSubject
from lodger.errors import InventoryError
from lodger.inventory import Fleet
from lodger.release.render import render
from tests.unit.capacity.support_capacity import model, subject


def test_a_report_becomes_the_next_prediction(fleet: Fleet) -> None:
    before = subject(fleet).predict()
    reported = int(before.tokens * 0.9)
    compared = capacity.learn(subject(fleet), reported, 7)
    assert compared is not None
    assert compared.error == pytest.approx(1 / 0.9 - 1, abs=0.001)
    assert "+11.1%" in str(compared)
    after = subject(fleet)
    assert after.correction < 0
    assert after.predict().tokens == pytest.approx(reported, rel=0.001)
    assert sum(mib for _, mib in after.predict().parts) == pytest.approx(24576, abs=0.01)
    (file,) = (fleet.folder / measured.FOLDER).iterdir()
    assert file.name == "node1.qwen38.qwen3.8-27b-fp8.json"


@pytest.mark.parametrize("missing", [0, 200, 400, 785, 1200, 2000, 3000])
def test_a_report_is_explained_with_its_number_of_requests(fleet: Fleet, missing: int) -> None:
    """The last slot of a request decides over 14,000 tokens: tokens alone would be explained in two ways."""
    about = subject(fleet)
    real = about.predict(correction=-missing)
    capacity.learn(subject(fleet), real.tokens, real.running)
    learnt = subject(fleet).predict()
    assert learnt.running == real.running
    assert learnt.tokens == pytest.approx(real.tokens, rel=0.01)


def test_a_report_that_no_memory_explains_is_not_believed(fleet: Fleet) -> None:
    about = subject(fleet)
    limited = about.settings.model_copy(update={"extra_args": ("--max-total-tokens", "100000")})
    assert measured.correction(lambda mib: about.predict(limited, correction=mib), 250_000, before=3.0) == 3.0


def test_a_second_report_that_is_the_same_writes_nothing(fleet: Fleet) -> None:
    capacity.learn(subject(fleet), 240_000)
    (file,) = (fleet.folder / measured.FOLDER).iterdir()
    first = (file.read_text(), file.stat().st_mtime_ns)
    compared = capacity.learn(subject(fleet), 240_100)
    assert compared is not None
    assert abs(compared.error) < 0.005
    assert (file.read_text(), file.stat().st_mtime_ns) == first


def test_what_one_host_reported_is_not_believed_of_another(fleet: Fleet) -> None:
    capacity.learn(subject(fleet), 200_000)
    assert subject(fleet, "node2").correction == 0


def test_a_correction_that_is_none_is_refused_by_name(fleet: Fleet) -> None:
    file = measured.path(fleet.folder, "qwen3.8-27b-fp8", "qwen38", "node1")
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(InventoryError, match=re.escape(str(file))):
        subject(fleet)


def test_the_floor_accepts_the_right_pool_and_not_that_of_a_gpu_that_was_not_free(fleet: Fleet) -> None:
    about = subject(fleet)
    floor = capacity.floor(subject(fleet))
    assert floor is not None
    assert floor < about.predict().tokens * 0.9, "within the model's own error"
    late = dataclasses.replace(about, gpu=GpuMemory(24576, 1024 + 4096))  # a predecessor still holds 4 GiB
    assert late.predict().tokens < floor


def simulated_tokens(fleet: Fleet, host: str, free: int) -> int:
    """Return the KV cache of the simulated engine as the host's release starts it, with ``free`` MiB on each GPU."""
    images = {name: image.model_copy(update={"digest": f"sha256:{'5' * 64}"}) for name, image in fleet.images.items()}
    release = render(fleet.model_copy(update={"images": images}), fleet.hosts[host])
    compose = next(file.content for file in release.files if file.path == "worker-a/compose.yml")
    words = [str(word) for word in yaml.safe_load(compose)["services"]["engine"]["command"]]
    folders = {
        f"/models/{fleet.models[name].directory}": dataclasses.replace(
            simulated_models.read(str(fleet.folder / "models" / name)), weight_bytes=model(name).weight_bytes
        )
        for name in fleet.models
    }
    args = simulated_options.parse(words[2:])
    draft = simulated.Draft(folders[str(args.speculative_draft_model_path)], int(args.speculative_num_draft_tokens))
    return int(simulated.plan(args, folders[str(args.model_path)], draft, 24576, free).tokens)


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_the_floor_holds_for_the_simulated_engine_and_not_for_one_on_gpus_that_were_not_free(fleet: Fleet, host: str) -> None:
    floor = capacity.floor(subject(fleet, host))
    assert floor is not None
    free = 24576 - simulated.CONTEXT_MIB - fleet.hosts[host].reserved_mib(0)
    assert simulated_tokens(fleet, host, free) > floor * 1.05
    assert simulated_tokens(fleet, host, free - 3072) < floor


def test_the_floor_follows_what_was_learnt(fleet: Fleet) -> None:
    capacity.learn(subject(fleet), 150_000)
    floor = capacity.floor(subject(fleet))
    assert floor == pytest.approx(150_000 * capacity.FLOOR, rel=0.01)


def test_without_the_models_files_there_is_no_floor_and_a_clear_refusal(fleet: Fleet) -> None:
    host, worker = fleet.hosts["node1"], fleet.hosts["node1"].workers["a"]
    shutil.rmtree(fleet.folder / "models" / "qwen3.8-27b-dflash2")
    about = SglangSubject.of(fleet, host, worker)
    assert about is None
    assert capacity.floor(about) is None
    assert capacity.learn(about, 200_000) is None
    with pytest.raises(InventoryError, match=r"the size of qwen3\.8-27b-dflash2 cannot be computed"):
        SglangSubject.needed(fleet, host, worker)
