"""A mistake in how a method uses Lightning: it would be every client's, so it ends the run."""


class UsageError(ValueError):
    """A method asks for what no visit has; unlike any other error it does not just leave the client out."""


class NoSuchAttribute(UsageError, AttributeError):
    """The same for an attribute, so that `hasattr` and a default still work."""
