"""Errors of `batchwright folder`. Each message is written for the user."""


class FolderError(Exception):
    """The folder cannot be used. The message names the remedy."""


class JobFailed(Exception):
    """A job cannot be done. The message is the reason for its `error.txt`. It is not retried."""
