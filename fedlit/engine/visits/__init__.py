"""A client's visit, which is a `fit` of Lightning's: steps, hooks, optimisers, early stopping."""
