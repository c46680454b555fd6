"""The affinity probe: whether a prompt returns to the worker that has its beginning cached."""
