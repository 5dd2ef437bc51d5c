"""Which model on whose data, and what is taken out of a federation: predictions, networks, a newcomer."""
