"""What the tests of lint share."""

from collections.abc import Callable
from pathlib import Path

from lodger import inventory, lint
from lodger.checkout import CODE
from lodger.lint import Finding

ROOT = CODE
HOSTS = ROOT / "hosts"

Edit = Callable[[str, str, str], None]


def errors(hosts: Path) -> list[Finding]:
    return lint.errors(lint.check(inventory.load(hosts)))
