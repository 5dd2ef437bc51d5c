"""Runs a method on Lightning Fabric: state of the federation, rounds, local training, evaluation, checkpoints."""
