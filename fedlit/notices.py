"""What a user should know but need not act on at once, such as the new name of an option."""


class Notice(UserWarning):
    """A warning of fedlit's own: the command line shows it in one line, Python code may filter it like any other."""
