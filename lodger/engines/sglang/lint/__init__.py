"""What is known to break with SGLang. Importing a module registers its rules."""

from lodger.engines.sglang.lint import draft, images, kernels, memory, options, parsers, router
from lodger.engines.sglang.lint.rules import RULES

__all__ = ["RULES", "draft", "images", "kernels", "memory", "options", "parsers", "router"]
