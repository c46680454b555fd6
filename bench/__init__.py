"""Benchmarks: each prints both sides from one run. No test depends on a time."""
