"""The error that ends a command: its text is all that the caller is shown."""


class Failure(Exception):
    """Names what failed and, where there is one, the remedy."""
