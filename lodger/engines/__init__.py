"""What Lodger asks of an engine, and each engine in a folder of its own."""
