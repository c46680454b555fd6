"""What supervisor uses of pkg_resources. The whole of it takes twice as long to load as supervisorctl takes for its answer."""

import importlib
from typing import Any


class EntryPoint:
    """`name=module:attribute`, found when it is asked for."""

    def __init__(self, module: str, attribute: str) -> None:
        self.module, self.attribute = module, attribute

    @staticmethod
    def parse(text: str) -> "EntryPoint":
        """Take the text apart."""
        module, _, attribute = text.partition("=")[2].partition(":")
        return EntryPoint(module, attribute)

    def resolve(self) -> Any:
        """Return what it names."""
        return getattr(importlib.import_module(self.module), self.attribute)
