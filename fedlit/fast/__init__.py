"""Shortcuts: the same work in less time, each taken only where everything is known to be plain."""
