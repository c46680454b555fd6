"""What git says of a checkout, on repositories made for the test."""

import os
import subprocess
from pathlib import Path

import pytest

from lodger import checkout


class Repository:
    """A git repository that takes nothing from the settings of whoever runs the tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        names = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1", **names}
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=environment).stdout.strip()

    def commit(self, text: str) -> str:
        (self.root / "file").write_text(text)
        self.git("add", "file")
        self.git("commit", "-qm", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_revision_is_the_commit_and_says_when_files_differ(repository: Repository) -> None:
    commit = repository.commit("one")
    (repository.root / "untracked").write_text("")
    assert checkout.revision(repository.root) == commit
    (repository.root / "file").write_text("edited")
    assert checkout.revision(repository.root) == f"{commit}-dirty"


def test_revision_outside_git_is_unknown(tmp_path: Path) -> None:
    assert checkout.revision(tmp_path) == checkout.UNKNOWN


def test_a_checkout_contains_what_it_was_made_from_and_nothing_later(repository: Repository) -> None:
    one, two = repository.commit("one"), repository.commit("two")
    assert checkout.contains(one, repository.root)
    assert checkout.contains(two, repository.root)
    assert checkout.contains(f"{one}-dirty", repository.root)
    repository.git("checkout", "-q", one)
    assert not checkout.contains(two, repository.root)
    repository.git("checkout", "-qb", "side")
    assert not checkout.contains(two, repository.root)
    assert checkout.contains(repository.commit("three"), repository.root)


@pytest.mark.parametrize(
    ("revision", "contained"), [("f" * 40, False), ("", False), ("unknown", True), ("unknown-dirty", True)]
)
def test_a_revision_from_elsewhere_is_not_contained(repository: Repository, revision: str, contained: bool) -> None:
    repository.commit("one")
    assert checkout.contains(revision, repository.root) is contained
