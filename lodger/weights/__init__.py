"""Weights: from a model hub, or from a host that has them, into a model's folder on a host."""
