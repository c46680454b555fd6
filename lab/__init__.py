"""Twins: local machines built from host files, to rehearse on. Nothing here is part of the product."""
