"""Locks: one run on a host at a time, one host in a pool at a time."""
