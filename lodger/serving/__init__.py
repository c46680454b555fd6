"""Checks of what is served, over a forwarded port: a client of the engine's HTTP API and the smoke test."""
