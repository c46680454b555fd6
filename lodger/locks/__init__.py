"""Who may act: one run a host, one host a pool."""
