"""States: the named conditions that runbooks are made of."""
