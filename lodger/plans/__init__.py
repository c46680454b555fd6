"""Which states in what order: from an inventory and what a host says to the plan of one run."""
