"""Where SGLang's rules register."""

from lodger.lint.rule import Rules

RULES = Rules()
rule = RULES.rule
