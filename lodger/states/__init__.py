"""Conditions of a host, one file each."""
