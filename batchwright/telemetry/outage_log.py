"""Log an outage once, not at each failed attempt."""

import logging
from collections.abc import Generator
from contextlib import contextmanager


class OutageLog:
    """A log that writes one warning for each outage, with the error of the first failed attempt.

    An outage lasts from the first failed attempt until the next successful one.
    """

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self._logger, self._message = logger, message
        self._is_out = False

    @contextmanager
    def suppress(self, *errors: type[BaseException]) -> Generator[None]:
        """Context manager whose block is one attempt to use something that may be unavailable.

        If the block raises one of `errors`, suppress the error and pass it to `failed`. If the block raises
        nothing, call `succeeded`.
        """
        try:
            yield
        except errors as error:
            self.failed(error)
        else:
            self.succeeded()

    def failed(self, error: BaseException) -> None:
        """Report a failed attempt. The error is logged only if this attempt is the first one of an outage."""
        if not self._is_out:
            self._logger.warning(self._message, extra={"error": str(error)})
        self._is_out = True

    def succeeded(self) -> None:
        """Report a successful attempt, which ends the outage."""
        self._is_out = False
