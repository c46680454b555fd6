"""Asking a machine: commands, SSH, paths, owners, facts."""
