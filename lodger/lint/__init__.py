"""What is known to break, checked against the inventory with no host at all."""
