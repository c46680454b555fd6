"""The site's own inventory, broken one way at a time: each mistake is named with file, line, path and what is accepted."""

import ast
import inspect
import itertools

from lodger.inventory import schema


def test_every_field_says_what_it_means() -> None:
    tree = ast.parse(inspect.getsource(schema))
    silent = [
        f"{model.name}.{field.target.id}"
        for model in ast.walk(tree)
        if isinstance(model, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in SCHEMA_BASES for base in model.bases)
        for field, after in itertools.pairwise([*model.body, ast.Pass()])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and not field.target.id.startswith("_")
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str))
    ]
    assert silent == []


SCHEMA_BASES = {"_Model", "_Named", "Engine", "Site"}
