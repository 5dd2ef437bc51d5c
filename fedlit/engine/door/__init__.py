"""Checks at the door: what is wrong with an experiment is said before its first round."""
