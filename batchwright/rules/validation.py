"""Validating a whole input: its lines, and what only shows when all of them are seen."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from batchwright.contracts.openai import Endpoint, Profile, ValidationError
from batchwright.rules.checks import Limits, LineChecker, Request
from batchwright.rules.findings import Code, Findings
from batchwright.rules.lines import Line, Splitter
from batchwright.rules.usual import usual_lines

_AT_ONCE = 256  # lines read before the first of them is checked


class ValidationReport(NamedTuple):
    """`errors` lists at most 1,000 of the `error_count` there are; `models` counts the accepted lines."""

    lines: int
    errors: list[ValidationError]
    error_count: int
    models: dict[str, int]  # "" where lines name no model

    @property
    def valid(self) -> bool:
        return not self.error_count


class Validation:
    """Fed with the pieces of the input; gives the accepted lines, notes the others in `findings`."""

    def __init__(self, endpoint: Endpoint, profile: Profile, limits: Limits) -> None:
        self.total = 0
        self.findings = Findings()
        self._limits = limits
        self._splitter = Splitter(limits.max_line_bytes)
        self._checker = LineChecker(endpoint, profile, limits, self.findings)

    @property
    def full(self) -> bool:
        """There are more lines than allowed: no further one is looked at."""
        return self.total > self._limits.max_lines

    def feed(self, piece: bytes) -> Iterator[tuple[Line, Request]]:
        """To be exhausted before the next piece."""
        return self._accepted(self._splitter.feed(piece))

    def finish(self) -> Iterator[tuple[Line, Request]]:
        """What is left, and the errors of the input as a whole."""
        yield from self._accepted(self._splitter.finish())
        if self.full:
            most = self._limits.max_lines
            message = f"The input has more than {most} requests, the most a batch may have. Split it."
            self.findings.add(Code.TOO_MANY_TASKS, message)
        self._checker.forget_ids()
        if not self.total:
            message = "The input file is empty. Please ensure that the batch contains at least one request."
            self.findings.add(Code.EMPTY_FILE, message)

    def _accepted(self, lines: Iterator[Line]) -> Iterator[tuple[Line, Request]]:
        most, check = self._limits.max_lines, self._checker.check
        while some := list(islice(lines, _AT_ONCE)):
            for line, usual in zip(some, usual_lines(some), strict=True):
                if self.full:
                    return
                self.total += 1
                if self.total <= most and (request := check(line, usual)) is not None:
                    yield line, request


def validate(
    pieces: Iterable[bytes], endpoint: Endpoint, limits: Limits, profile: Profile
) -> ValidationReport:
    """What ingestion would say about this input, as far as that does not depend on the backends."""
    validation = Validation(endpoint, profile, limits)
    models: dict[str, int] = {}

    def count(accepted: Iterable[tuple[Line, Request]]) -> None:
        for _, request in accepted:
            name = request.model or ""
            models[name] = models.get(name, 0) + 1

    for piece in pieces:
        count(validation.feed(piece))
    count(validation.finish())
    findings = validation.findings
    return ValidationReport(validation.total, findings.listed(), findings.count, models)
