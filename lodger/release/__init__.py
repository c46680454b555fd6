"""The files of a release, and what of it stands on a host."""
