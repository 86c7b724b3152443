"""Errors of `batchwright folder`. Each message is written for the user."""


class FolderError(Exception):
    """The folder cannot be used. The message tells the user what to do."""


class JobFailed(Exception):
    """A job has failed and is not retried. The message is written to the job's `error.txt`."""
