"""Runbooks: Markdown that a person can follow by hand, and the list of states that a machine reads from it.

Front matter holds title, hosts, risk and expected duration. Under a heading stands one fenced ``state`` block in YAML:

    states: [service_installed, worker_ready]   # or state: release_staged
    each: worker                                # repeat the group for each worker of the host
    witness: [test_worker.py]                   # testinfra files below tests/host, asked after the group's last state

A state of the runbook's own is `state: shell` with `name`, `check`, `run`, and where it can be, `undo` and `timeout` (s).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from lodger.checkout import CODE
from lodger.errors import UsageError
from lodger.states.registry import states

FOLDER = CODE / "runbooks"
_KEYS = {"state", "states", "each", "witness"}
# A state that the runbook itself defines: keys it must have, and keys it may have.
_SHELL, _SHELL_MAY = {"name", "check", "run"}, {"undo", "timeout"}


@dataclass(frozen=True)
class Block:
    """One ``state`` block: the names in it, what it is repeated for, its witnesses, and its line.

    ``shell`` has the scripts of a state that the runbook defines itself, and is empty for all others.
    """

    names: tuple[str, ...]
    each: str
    witnesses: tuple[str, ...]
    heading: str
    line: int
    shell: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Runbook:
    """A parsed runbook; ``text`` is the whole document."""

    name: str
    title: str
    hosts: tuple[str, ...]
    risk: str
    duration: str
    text: str
    blocks: tuple[Block, ...]

    @property
    def states(self) -> frozenset[str]:
        """The names of all states in it."""
        return frozenset(name for block in self.blocks for name in block.names)

    def annotated(self, said: Mapping[int, Sequence[str]]) -> str:
        """Return the document with the lines of ``said`` (line of a block -> lines) after that block."""
        lines: list[str] = []
        block = 0
        for number, line in enumerate(self.text.rstrip().split("\n"), 1):
            lines.append(line)
            if number in {one.line for one in self.blocks}:
                block = number
            elif block and line.startswith("```"):
                lines += ["", *(f"    {one}" for text in said.get(block, ["nothing on this host"]) for one in text.split("\n"))]
                block = 0
        return "\n".join(lines)


def folders(inventory: Path) -> tuple[Path, Path]:
    """Return the folders of runbooks for an inventory in the folder ``inventory``: the operator's before Lodger's."""
    return inventory / "runbooks", FOLDER


def load(name: str, *folders: Path) -> Runbook:
    """Return the runbook ``name`` of the first of ``folders`` (else of Lodger's own folder) that has it.

    Raise UsageError naming file and line of every mistake in it.
    """
    there = {path.stem: path for folder in reversed(folders or (FOLDER,)) for path in folder.glob("*.md")}
    if name not in there:
        where = " and ".join(str(folder) for folder in folders or (FOLDER,))
        raise UsageError(f"there is no runbook {name} in {where}", hint=f"the runbooks are: {', '.join(sorted(there))}")
    return parse(there[name].read_text(), name, str(there[name]))


def parse(text: str, name: str, file: str) -> Runbook:
    """Return the runbook in ``text``; raise UsageError naming ``file`` and the line of every mistake."""
    mistakes: list[str] = []
    front, body, offset = _front_matter(text, file)
    blocks: list[Block] = []
    heading = ""
    tokens = MarkdownIt().parse(body)
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[index + 1].content
        if token.type == "fence" and token.info.strip() == "state":
            line = offset + (token.map[0] if token.map else 0) + 1
            try:
                blocks.append(_block(token.content, heading, line))
            except ValueError as error:
                mistakes.append(f"{file}:{line}: {error}")
    if not blocks and not mistakes:
        mistakes.append(f"{file}:1: it has no ```state block")
    if mistakes:
        raise UsageError("\n".join(mistakes), hint="runbooks/deploy.md shows every kind of block")
    hosts = front.get("hosts", [])
    return Runbook(
        name,
        str(front.get("title", name)),
        tuple(hosts) if isinstance(hosts, list) else (str(hosts),),
        str(front.get("risk", "")),
        str(front.get("duration", "")),
        text,
        tuple(blocks),
    )


def _front_matter(text: str, file: str) -> tuple[dict[str, Any], str, int]:
    lines = text.split("\n")
    if lines[0] != "---" or "---" not in lines[1:]:
        raise UsageError(
            f"{file}:1: it does not begin with front matter",
            hint="write title, hosts, risk and duration between two lines of ---",
        )
    end = lines.index("---", 1)
    try:
        front = _values("\n".join(lines[1:end]))
    except ValueError as error:
        raise UsageError(f"{file}:1: its front matter is not YAML", cause=str(error)) from error
    if not isinstance(front, dict):
        hint = "write title, hosts, risk and duration, each as `name: value`"
        raise UsageError(f"{file}:1: its front matter has no settings", hint=hint)
    return front, "\n".join(lines[end + 1 :]), end + 1


class _Loader(yaml.SafeLoader):
    """Reads the values of YAML 1.2: ``on``, ``no`` and ``12:30`` are text.

    A number that can be read in two ways (``010``, ``1_000``) is text too, so an error where a number is needed.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that appears twice: the second would silently win."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.MarkedYAMLError(problem=f'found duplicate key "{twice}"')
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}


for _tag, _written, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"({_written})\Z"), _first)


def _values(text: str) -> Any:
    """Return the value of a YAML text; raise ValueError with what is wrong in it."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as error:
        problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
        raise ValueError(problem or str(error).splitlines()[0]) from error


def _block(content: str, heading: str, line: int) -> Block:
    try:
        data = _values(content)
    except ValueError as error:
        raise ValueError(f"the block is not YAML: {error}") from error
    if not isinstance(data, dict) or ("state" in data) == ("states" in data):
        raise ValueError("a block must have either `state:` or `states:`")
    if data.get("state") == "shell":
        return _shell_block(data, heading, line)
    names = _words(data, "states") if "states" in data else (str(data["state"]),)
    for one in names:
        if one not in states():
            raise ValueError(f"there is no state `{one}`; the states are: {', '.join(sorted((*states(), 'shell')))}")
    unknown = sorted(str(key) for key in data.keys() - _KEYS)
    if unknown:
        raise ValueError(f"`{unknown[0]}` is not known here; known are: {', '.join(sorted(_KEYS))}")
    each = str(data.get("each", ""))
    for one in names:
        wanted = states()[one].each
        if wanted != each and (wanted != "service" or each not in {"worker", "router"}):
            raise ValueError(f"`{one}` needs {f'`each: {wanted}`' if wanted else 'a block with no `each:`'}")
    return Block(names, each, _words(data, "witness") if "witness" in data else (), heading, line)


def _shell_block(data: dict[str, Any], heading: str, line: int) -> Block:
    given = data.keys() - {"state", "witness"}
    lacking, unknown = sorted(_SHELL - given), sorted(str(key) for key in given - _SHELL - _SHELL_MAY)
    if lacking:
        raise ValueError(f"a shell state needs `{lacking[0]}:`")
    if unknown:
        raise ValueError(f"`{unknown[0]}` is not known in a shell state; known are: {', '.join(sorted(_SHELL | _SHELL_MAY))}")
    scripts = {key: data[key] for key in given - {"timeout"}}
    wrong = sorted(key for key, value in scripts.items() if not isinstance(value, str) or not value.strip())
    if wrong:
        raise ValueError(f"`{wrong[0]}` must be a text, in quotes or after `|`")
    timeout = data.get("timeout", 600)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 1:
        raise ValueError("`timeout` must be a whole number of seconds")
    shell = {**scripts, "timeout": float(timeout)}
    return Block((str(data["name"]),), "", _words(data, "witness") if "witness" in data else (), heading, line, shell)


def _words(data: dict[str, Any], key: str) -> tuple[str, ...]:
    found = data[key]
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise ValueError(f"`{key}` must be a list of names: [one, another]")
    return tuple(found)


def check(folder: Path = FOLDER, specs: Path = CODE / "tests" / "host") -> list[str]:
    """Return every mistake in every runbook of ``folder``, each with file and line; witnesses must exist below ``specs``."""
    found: list[str] = []
    for path in sorted(folder.glob("*.md")):
        try:
            book = load(path.stem, folder)
        except UsageError as error:
            found += error.what.splitlines()
            continue
        seen: dict[str, int] = {}
        for block in book.blocks:
            where = f"{path}:{block.line}"
            found += [f"{where}: there is no witness {name}" for name in block.witnesses if not (specs / name).is_file()]
            if block.shell and block.names[0] in seen:
                found.append(f"{where}: the state {block.names[0]} is already defined at line {seen[block.names[0]]}")
            seen.setdefault(block.names[0], block.line)
    return found
