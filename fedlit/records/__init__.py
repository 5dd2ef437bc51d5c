"""What a run leaves behind, and how it is told. Knows nothing of the engine."""
