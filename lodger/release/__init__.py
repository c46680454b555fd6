"""The files of a release, and what of it is on a host."""
