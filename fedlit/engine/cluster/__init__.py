"""Several processes: how they meet, share a round's clients, and notice that one is gone."""
