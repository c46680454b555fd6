"""Nix and copies of the flake, made once a session."""

from pathlib import Path

import pytest

from tests.packaging.nix import Nix, checkout


@pytest.fixture(scope="session")
def nix(tmp_path_factory: pytest.TempPathFactory) -> Nix:
    return Nix(tmp_path_factory.mktemp("nix"))


@pytest.fixture
def flake(tmp_path: Path) -> Path:
    """What evaluation reads, for a test to break."""
    return checkout(tmp_path / "flake", "flake.nix", "flake.lock", "nix", "pyproject.toml", "requirements.lock")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of the checkout, for builds."""
    return checkout(tmp_path_factory.mktemp("whole") / "checkout")
