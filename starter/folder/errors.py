"""Errors of `batchwright folder`. Each message is written for the user."""


class FolderError(Exception):
    """The folder cannot be used. The message says what the user can do."""


class JobFailed(Exception):
    """Raised if a job cannot be done. It is not retried. The message is written to the job's `error.txt`."""
