"""From outputs to scores: what is measured of a model, batch by batch."""
