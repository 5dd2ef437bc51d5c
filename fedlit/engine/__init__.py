"""The engine: what a federation is, a round, a visit, evaluation; on Lightning Fabric."""
