"""Every text that an operator may read, in one list. Read it from top to bottom after a change: `pytest -s tests/unit/test_messages.py`.

What a value stands for is shown in braces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodger import errors
from lodger.checkout import CODE

ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
# Calls whose texts are shown: errors and refusals, what stands in the way, findings, lint, lines of a run.
SHOWN = ERRORS | {
    "Blocker",
    "NoUndo",
    "Hit",
    "HubError",
    "HubSilent",
    "NoRoom",
    "Unreadable",
    "no_manifest",
    "note",
    "progress",
    "say",
}
FINDINGS = re.compile(r"\w+_finding")
# Methods that return one text, or several.
SPEAKING = {
    "missing",
    "undone",
    "hopeless",
    "undo_hopeless",
    "progress",
    "remarks",
    "outage_note",
    "gave_up",
    "loaded",
    "installed",
    "held",
}


def text_of(node: ast.expr) -> str:
    """Return a text as it is written, each value in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values]  # type: ignore[attr-defined]
        return "".join(map(str, parts))
    if isinstance(node, ast.IfExp):
        return " / ".join(filter(None, (text_of(node.body), text_of(node.orelse))))
    if isinstance(node, ast.BinOp | ast.BoolOp):
        inner = [node.left, node.right] if isinstance(node, ast.BinOp) else node.values
        return " ".join(filter(None, map(text_of, inner)))
    return ""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of everything in a module that is shown."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in SHOWN or FINDINGS.fullmatch(name):
                for value in [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg != "host")]:
                    yield node.lineno, text_of(value)
            else:
                yield from ((node.lineno, text_of(k.value)) for k in node.keywords if k.arg in {"why", "hint", "cause", "help"})
        elif isinstance(node, ast.FunctionDef) and node.name in SPEAKING:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield inner.lineno, text_of(inner.value)
        elif isinstance(node, ast.Assign) and any(
            getattr(t, "id", "") in {"what", "cause", "hint", "todo", "measured"} for t in node.targets
        ):
            yield node.lineno, text_of(node.value)


def listed() -> dict[str, list[str]]:
    """Return the list: of each module its texts, each once, in the order of the lines."""
    found: dict[str, list[str]] = {}
    for path in sorted(CODE.glob("lodger/**/*.py")):
        said = dict.fromkeys(" ".join(text.split()) for _, text in sorted(texts(path)))
        found[str(path.relative_to(CODE))] = [text for text in said if len(re.sub(r"\{.*?\}", "", text).split()) > 1]
    return {module: said for module, said in found.items() if said}


def test_texts_are_phrases_without_a_full_stop() -> None:
    """They are joined by what shows them: cause in brackets, hint on its own line."""
    for module, said in listed().items():
        print(f"# {module}", *said, "", sep="\n")
    assert [(module, text) for module, said in listed().items() for text in said if text.endswith(".")] == []
    assert "the host key of {hostname} is not known" in listed()["lodger/host/ssh_open.py"]


# Riddles of before: what they meant is said in the operator's nouns.
RIDDLES = re.compile(
    r"whose turn|what is told|nothing is known\b|has its turn|is no business of|reads strangely|of nobody\b|in the way of"
    r"|no name\b|way back|mistake in Lodger|is no time\b|is silent for|at peace|held by a stranger|not spent|unsaid|in no rotation"
    r"|GPUs back|nobody was told|\binvoke \w|once more|has it now|is well\b|asks for another|unasked|half way"
)


@pytest.mark.parametrize("path", sorted(CODE.glob("lodger/**/*.py")), ids=lambda path: str(path.relative_to(CODE)))
def test_no_text_is_a_riddle(path: Path) -> None:
    assert [(line, text) for line, text in texts(path) if RIDDLES.search(text)] == []
