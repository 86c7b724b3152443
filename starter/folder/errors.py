"""Errors of `batchwright folder`. Each message is written for the user."""


class FolderError(Exception):
    """The folder cannot be used. The message says what the user can do."""


class JobFailed(Exception):
    """A job cannot be done and is not retried. The message becomes the content of the job's `error.txt`."""
