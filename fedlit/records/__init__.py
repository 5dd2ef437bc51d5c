"""The records of a run, and what is printed of it. Knows nothing of the engine."""
