"""Validate a whole input: each line, and the limits for all lines together."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from batchwright.contracts.terms import Endpoint, Profile, ValidationError
from batchwright.rules.growing_bytes import GrowingBytes, NewBytes
from batchwright.rules.input.line_parser import fast_parse
from batchwright.rules.input.line_rules import (
    AcceptedRequest,
    InputLimits,
    LineValidator,
    RejectedRequest,
)
from batchwright.rules.input.line_splitter import InputLine, LineSplitter
from batchwright.rules.input.validation_errors import ValidationCode, ValidationErrors

CheckedLine = tuple[InputLine, AcceptedRequest | RejectedRequest]
_LINES_PARSED_AT_ONCE = 256


class ValidationReport(NamedTuple):
    """The result of the validation of an input.

    Attributes:
        errors: the first errors, at most 1,000 (`ValidationErrors.as_list`).
        error_count: number of all errors.
        models: for each model, the number of its accepted lines.
    """

    lines: int
    errors: list[ValidationError]
    error_count: int
    models: dict[str, int]  # the key is empty for lines that name no model

    @property
    def valid(self) -> bool:
        return not self.error_count


class InputValidator:
    """A validator for one input, which it receives in pieces.

    The validator yields the accepted lines, and collects all errors in `errors`.

    If `limits.bodies_fail_alone` is True, lines with an invalid body are accepted, too. Such a line fails
    later, but the batch continues.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        profile: Profile,
        limits: InputLimits,
        new_bytes: NewBytes = GrowingBytes,
    ) -> None:
        """Create a validator for one input.

        Args:
            endpoint: endpoint of the batch.
            profile: how strictly the lines are checked.
            limits: the operator's limits for the input.
            new_bytes: creates the storage for the hashes of `custom_id`s. It is used after the first million
                ids.
        """
        self.total = 0
        self.errors = ValidationErrors()
        self._limits = limits
        self._splitter = LineSplitter(limits.max_line_bytes)
        self._checker = LineValidator(endpoint, profile, limits, self.errors, new_bytes)

    @property
    def is_full(self) -> bool:
        """True if the input has more lines than a batch may have. All further lines are ignored."""
        return self.total > self._limits.max_lines

    def feed(self, piece: bytes) -> Iterator[CheckedLine]:
        """Yield the accepted lines that end in `piece`, the next bytes of the input.

        Read all lines from the iterator before you call `feed` again.
        """
        return self._accepted_lines(self._splitter.feed(piece))

    def finish(self) -> Iterator[CheckedLine]:
        """Yield the last line if it is accepted. Record an error if the input has no lines or too many.

        Call this after the last call of `feed`.
        """
        yield from self._accepted_lines(self._splitter.finish())
        if self.is_full:
            most = self._limits.max_lines
            message = f"The input has more than {most} requests, the most a batch may have. Split it."
            self.errors.add(ValidationCode.TOO_MANY_TASKS, message)
        self._checker.finish()
        if not self.total:
            message = "The input file is empty. Please ensure that the batch contains at least one request."
            self.errors.add(ValidationCode.EMPTY_FILE, message)

    def _accepted_lines(self, lines: Iterator[InputLine]) -> Iterator[CheckedLine]:
        most, check = self._limits.max_lines, self._checker.check
        while lines_read := list(islice(lines, _LINES_PARSED_AT_ONCE)):
            for line, fast in zip(lines_read, fast_parse(lines_read), strict=True):
                if self.is_full:
                    return
                self.total += 1
                if self.total <= most and (request := check(line, fast)) is not None:
                    yield line, request


def validate(
    pieces: Iterable[bytes],
    endpoint: Endpoint,
    limits: InputLimits,
    profile: Profile,
    new_bytes: NewBytes = GrowingBytes,
) -> ValidationReport:
    """Validate a whole input, given in pieces, and return a report.

    Checks that need the registered backends, for example whether a model exists, are not made here.

    Args:
        pieces: the bytes of the input, in pieces of any size.
        endpoint: endpoint of the batch.
        limits: the operator's limits for the input.
        profile: how strictly the lines are checked.
        new_bytes: creates the storage for the hashes of `custom_id`s. It is used after the first million ids.
    """
    validation = InputValidator(endpoint, profile, limits, new_bytes)
    models: dict[str, int] = {}

    def count(accepted: Iterable[CheckedLine]) -> None:
        for _, request in accepted:
            name = request.model or ""
            models[name] = models.get(name, 0) + 1

    for piece in pieces:
        count(validation.feed(piece))
    count(validation.finish())
    errors = validation.errors
    return ValidationReport(validation.total, errors.as_list(), errors.count, models)
