"""Looks that change nothing: verify, smoke, affinity, doctor."""
