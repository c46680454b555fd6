"""One run on one host: lock, ledger, states, undo, witnesses, journal."""
