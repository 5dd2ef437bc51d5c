"""Who trains when: stages over rounds, the clients of a round, and whether they are enough."""
