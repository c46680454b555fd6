"""The fleet as its owner wrote it down: ``hosts/fleet.yml`` and one ``hosts/<name>.yml`` for each machine.

``load`` reads a folder, checks every file and what the files say about each other, and reports all mistakes at once, each
with file, line and path. What a file may say is in ``schema``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from lodger.errors import InventoryError
from lodger.inventory import cross_checks, strict_yaml
from lodger.inventory.messages import dotted, explain
from lodger.inventory.schema import Fleet, Host, Site
from lodger.inventory.strict_yaml import Document, Loc, Problem
from lodger.inventory.values import give_names, like


@dataclass(frozen=True, order=True)
class _Mistake:
    stem: str
    line: int
    loc: Loc
    text: str


def load(path: Path) -> Fleet:
    """Read the inventory in the folder ``path``.

    Raises InventoryError with every mistake of every file, one a line: file, line, path, what is wrong, what is accepted.
    """
    documents = _read_all(path)
    unread = [_Mistake(stem, p.line, p.loc, p.text) for stem, doc in documents.items() for p in doc.problems]
    judged: list[tuple[str, Loc, str]] = []
    site: Site | None = None
    hosts: dict[str, Host] = {}
    for stem, doc in documents.items():
        if any(problem.loc == () for problem in doc.problems):
            continue  # not read to its end: what seems missing may only be unread
        try:
            if stem == "fleet":
                site = Site.model_validate(doc.data)
            else:
                hosts[stem] = Host.model_validate(doc.data)
        except ValidationError as error:
            model = Site if stem == "fleet" else Host
            judged += [(stem, loc, text) for loc, text in explain(error, model, doc)]
    judged += cross_checks.check(site, give_names(hosts), documents)
    # A value that could not be read is not also judged.
    known = {(m.stem, m.loc) for m in unread}
    mistakes = unread + [_Mistake(s, documents[s].line(loc), loc, t) for s, loc, t in judged if (s, loc) not in known]
    if mistakes or site is None:
        raise _all_in_one(path, mistakes)
    return Fleet(**{name: getattr(site, name) for name in Site.model_fields}, hosts=hosts, folder=path, sources=documents)


def _read_all(path: Path) -> dict[str, Document]:
    """Read every inventory file of a folder, fleet.yml first."""
    hint = "name the folder with --hosts-dir DIR or LODGER_HOSTS=DIR"
    try:
        files = sorted(f for f in path.iterdir() if f.suffix in (".yml", ".yaml") and not f.name.startswith("."))
        contents = {file.name: file.read_bytes() for file in files}
    except OSError as error:
        raise InventoryError(f"cannot read the inventory in {path}", cause=error.strerror or str(error), hint=hint) from error
    if "fleet.yml" not in contents:
        raise InventoryError(f"there is no fleet.yml in {path}", hint=hint)
    if len(contents) == 1:
        raise InventoryError(f"there is no host file in {path}", hint="beside fleet.yml, write one <host>.yml for each machine")
    documents = {"fleet": strict_yaml.read(contents.pop("fleet.yml"))}
    for name, content in contents.items():
        doc = documents[name.removesuffix(".yml")] = strict_yaml.read(content)
        stem = name.removesuffix(".yml")
        if name.endswith(".yaml"):
            doc.problems.insert(0, Problem(1, (), "is not read under this name; rename it to end in .yml"))
        elif stem == "all" or not like(r"[a-z0-9][a-z0-9-]{0,39}")(stem):
            accepts = "lower-case letters, digits and -, and not all, which means every host"
            doc.problems.insert(0, Problem(1, (), f"has a name that no host can have; accepted: {accepts}"))
    for doc in documents.values():
        if not doc.problems and not isinstance(doc.data, dict):
            kind = "is empty" if doc.data is None else "is not a mapping"
            doc.problems.append(Problem(1, (), f"{kind}; accepted: keys with values, `key: value`"))
    return documents


def _all_in_one(path: Path, mistakes: list[_Mistake]) -> InventoryError:
    def file(stem: str) -> Path:
        return path / (stem if stem.endswith(".yaml") else f"{stem}.yml")

    ordered = sorted(set(mistakes), key=lambda m: (m.stem != "fleet", m.stem, m.line, str(m.loc), m.text))
    lines = [f"{file(m.stem)}:{m.line}: {dotted(m.loc)}{': ' if m.loc else ''}{m.text}" for m in ordered]
    if len(lines) == 1:
        return InventoryError(lines[0])
    return InventoryError("\n".join([f"the inventory has {len(lines)} mistakes", *(f"  {line}" for line in lines)]))
