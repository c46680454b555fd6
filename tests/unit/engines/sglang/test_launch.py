"""What a worker is to say of itself once it runs."""

import pytest

from lodger import inventory
from lodger.checkout import CODE
from lodger.engines.sglang.launch import identity
from lodger.inventory import Fleet


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return inventory.load(CODE / "hosts")


@pytest.mark.parametrize("words", [["--tokenizer-path", "/models/T"], ["--tokenizer-path=/models/T"]])
def test_a_tokenizer_of_its_own_is_part_of_what_a_worker_serves(fleet: Fleet, words: list[str]) -> None:
    pool = fleet.pools["qwen38"].model_copy(update={"extra_args": ("--tokenizer-path", "/models/S", *words)})
    changed = fleet.model_copy(update={"pools": {"qwen38": pool}})
    assert identity(changed, fleet.hosts["node1"].workers["a"])["tokenizer_path"] == "/models/T"
