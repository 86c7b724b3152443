"""Error of the embedded stack that `dev` and `demo` start."""


class StackError(Exception):
    """The embedded stack cannot start or continue. The message is one sentence for the user.

    `detail` is the last output of the service that failed. It may be empty.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
