"""Serve LLMs as a good guest on shared GPU servers."""
