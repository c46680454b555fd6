"""The workflow reads, runs what anybody can run, takes no right it does not need, and no action that can change under it."""

import os
import re
import shutil
import subprocess
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML

from lab.run import CHECKOUT, PATIENCE

WORKFLOWS = CHECKOUT / ".github" / "workflows"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Step(Strict):
    """A step runs a command or a pinned action. Shell code is ours alone: no value of an event is pasted into it."""

    name: str = ""
    run: str = Field("", pattern=r"^[^$]*$")
    uses: str = Field("", pattern=r"^([\w.-]+/[\w./-]+@[0-9a-f]{40})?$")
    options: dict[str, str | int | bool] = Field(default_factory=dict, alias="with")

    @model_validator(mode="after")
    def either(self) -> "Step":
        if bool(self.run) == bool(self.uses):
            raise ValueError("a step has either `run` or `uses`")
        if self.uses.startswith("actions/checkout@") and self.options.get("persist-credentials") is not False:
            raise ValueError("the checkout leaves the job's token in .git/config")
        return self


class Job(Strict):
    name: str
    runs_on: Literal["ubuntu-24.04"] = Field(alias="runs-on")
    timeout: int = Field(alias="timeout-minutes", gt=0, le=90)
    steps: list[Step] = Field(min_length=1)


class Workflow(Strict):
    """The part of GitHub's workflow syntax that is used here, and no more."""

    name: str
    on: dict[Literal["push", "pull_request"], dict[Literal["branches"], list[str]] | None]
    permissions: dict[Literal["contents"], Literal["read"]] = Field(min_length=1)
    concurrency: dict[Literal["group", "cancel-in-progress"], str | bool]
    jobs: dict[str, Job] = Field(min_length=1)


def read(text: str) -> Workflow:
    # As GitHub reads it: the key `on` is text. To PyYAML it is true.
    return Workflow.model_validate(YAML(typ="safe").load(text))


@pytest.fixture
def text() -> str:
    return (WORKFLOWS / "ci.yml").read_text()


def test_there_is_one_workflow_and_it_runs_what_anybody_can_run(text: str) -> None:
    assert [path.name for path in WORKFLOWS.iterdir()] == ["ci.yml"]
    runs = [step.run for step in read(text).jobs["test"].steps if step.run]
    assert runs == ["sudo .ci/run"]
    assert os.access(CHECKOUT / ".ci" / "run", os.X_OK)


def test_a_pinned_action_tells_its_version(text: str) -> None:
    lines = [line for line in text.splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("@de0fac2e4500dabe0009e67214ff5f5447ce83dd", "@v6", id="an action by its tag"),
        pytest.param("contents: read", "contents: write", id="a right it does not need"),
        pytest.param("permissions:\n  contents: read\n", "", id="no word about rights"),
        pytest.param("runs-on:", "run-on:", id="a key that means nothing"),
        pytest.param("persist-credentials: false", "fetch-depth: 0", id="a token left on the disk"),
        pytest.param(
            "sudo .ci/run", "sudo .ci/run ${{ github.event.pull_request.title }}", id="a stranger's words in the shell"
        ),
        pytest.param("pull_request:", "pull_request_target:", id="a stranger's code with our rights"),
    ],
)
def test_a_careless_workflow_is_seen(text: str, before: str, after: str) -> None:
    assert before in text
    with pytest.raises(ValidationError):
        read(text.replace(before, after))


def test_workflow_is_well() -> None:
    """By its schema everywhere, and by actionlint where that is installed."""
    path = WORKFLOWS / "ci.yml"
    read(path.read_text())
    if actionlint := shutil.which("actionlint"):
        done = subprocess.run(
            [actionlint, "-shellcheck=", str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout
