"""StackError: why the embedded stack cannot start or go on."""


class StackError(Exception):
    """`str()` is one sentence for the user; `detail` is what the part itself said last, possibly empty."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
