"""Rules about further options, against the options of the engine itself."""

import json

from lodger.engines.sglang.options import options
from tests.unit.lint.support_lint import ROOT


def test_the_rules_know_the_options_of_the_pinned_engine() -> None:
    """They and the simulated engine's option table, from the same parser, have to name the same options."""
    table = json.loads((ROOT / "lab/engine/sglang/options.json").read_text())
    flags = {flag for option in table for flag in option["flags"] if flag.startswith("--")}
    assert set(options()["flags"]) == flags
    assert set(options()["deprecated"]) <= flags
