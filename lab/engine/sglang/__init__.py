"""A simulated SGLang 0.5.19: the same options, endpoints, log lines and failures, no GPU and no model.

Standard library only. `lab/engine/README.md` says what it covers and how to make it fail.
"""

__version__ = "0.5.19"
