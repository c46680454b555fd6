"""Which states in what order: the plan of one run, made from the inventory and the facts of a host."""
