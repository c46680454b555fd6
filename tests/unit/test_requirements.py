"""What runs here is what pyproject.toml asks for, be it a virtual environment made from the lock file or Nix's packages."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NEEDED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
# Nix has these as programs only, outside of the interpreter that runs the tests.
PROGRAMS = ("import-linter", "ruff")


@pytest.mark.parametrize("needed", [one for one in NEEDED if Requirement(one).name not in PROGRAMS])
def test_an_installed_version_is_one_that_is_asked_for(needed: str) -> None:
    requirement = Requirement(needed)
    assert version(requirement.name) in requirement.specifier
