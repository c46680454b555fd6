"""Bringing weights onto hosts."""
