"""What to change to get more out of the memory there is."""

from lodger.inventory import Fleet
from tests.unit.capacity.support_capacity import subject


def test_every_advice_gives_more_and_fits(fleet: Fleet) -> None:
    about = subject(fleet)
    now = about.most()
    found = {option.change: option for option in about.options()}
    assert found["mamba_ssm_dtype: bfloat16"].running > 2 * now.running
    assert found["kv_cache_dtype: fp8_e4m3"].tokens > 1.9 * now.tokens
    assert all(option.running > now.running or option.tokens > now.tokens for option in found.values())
    assert all(option.tokens >= about.settings.context_length and option.running >= 7 for option in found.values())
    assert sum(change.startswith("mamba_full_memory_ratio") for change in found) <= 2


def test_solving_for_one_keeps_the_other(fleet: Fleet) -> None:
    about = subject(fleet)
    for exact in about.solve("context"):
        assert exact.running >= about.settings.max_running_requests
        assert exact.tokens >= about.predict().tokens
    exact, short = about.solve("concurrency")
    assert exact.tokens >= about.settings.context_length
    assert about.predict().running < exact.running < short.running
    assert all(("less room" in one.price) is ("mem_fraction_static" in one.change) for one in (exact, short))
    assert "less room" in exact.price
