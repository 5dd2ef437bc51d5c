"""A fit from its first round to its last: begun or resumed, saved, told apart from the one before."""
