"""Results of a batch, and their merge from the two files of results into input order."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec
import openai
from openai.types import Batch

from batchwright.rules.results.line_results import LineError, LineResult

Status = Literal["completed", "failed"]  # the lines of the output file, and those of the error file
STATUSES: tuple[Status, Status] = ("completed", "failed")
_Model = TypeVar("_Model", bound=openai.BaseModel)


class RequestFailed(Exception):
    """The request of a result failed. `result` is the result, with its `error`."""

    def __init__(self, result: "Result", error: LineError) -> None:
        super().__init__(f"Request {result.custom_id!r} failed with {error.code}: {error.message}")
        self.result = result


class ResultsMissing(Exception):
    """The batch ended, and some lines have no result. `batch` is the batch, with its `errors`."""

    def __init__(self, batch: Batch, missing: int, lines: int) -> None:
        errors = (batch.errors and batch.errors.data) or []
        reasons = "; ".join(
            (f"line {error.line}: " if error.line else "") + (error.message or error.code or "unknown error")
            for error in errors[:3]
        )
        super().__init__(
            f"Batch {batch.id} ended as {batch.status}, and {missing} of its {lines} lines have no result"
            f"{': ' + reasons if reasons else '.'}"
        )
        self.batch = batch


class Result(LineResult):
    """Result of one request, with `response` as a type of the official client."""

    __slots__ = ()

    def response(self, model: type[_Model]) -> _Model:
        """Return the response as a model of the official client, such as `openai.types.chat.ChatCompletion`.

        As in the official client, the fields are not validated.

        Raises:
            RequestFailed: the request failed.
            msgspec.ValidationError: the body is not a JSON object.
        """
        if self.error is not None:
            raise RequestFailed(self, self.error)
        return as_model(model, self.content)


def as_model(model: type[_Model], data: bytes) -> _Model:
    """Return a JSON object as a model of the official client, without validation of its fields.

    Raises:
        msgspec.ValidationError: `data` is not a JSON object.
    """
    fields = msgspec.json.decode(data, type=dict[str, object])
    # Names with an underscore are parameters of `construct`. A backend must not set them.
    return model.construct(None, **{name: value for name, value in fields.items() if name[:1] != "_"})


class InputOrder:
    """Puts the results of completed and of failed lines into the input order of the lines.

    The API returns the two kinds separately, in any number of responses. The object remembers the last result
    that was taken of each kind, so the next request begins after this result.

    Args:
        custom_ids: custom ids of all lines, in input order.
    """

    def __init__(self, custom_ids: Iterable[str]) -> None:
        self._numbers = {custom_id: number for number, custom_id in enumerate(custom_ids)}
        self._next = 0
        self._cursors: dict[Status, str] = {}

    def parameters(self, status: Status) -> dict[str, object]:
        """Return the parameters of `GET /v1/batches/{id}/x/results` for the next lines with this status."""
        after = self._cursors.get(status)
        return {"status": status} if after is None else {"status": status, "after": after}

    def is_taken(self, result: Result) -> bool:
        """Return True if the line, or one after it, was taken already."""
        return self._numbers[result.custom_id] < self._next

    def next_of(self, heads: Mapping[Status, Result | None]) -> tuple[Status, Result] | None:
        """Return the result of the next line, if it is one of `heads`, the first ones of each status."""
        for status, head in heads.items():
            if head is not None and self._numbers[head.custom_id] == self._next:
                return status, head
        return None

    def take(self, status: Status, result: Result) -> None:
        """Record that the caller takes this result, which `next_of` has returned."""
        self._next += 1
        self._cursors[status] = result.id

    def rewind(self) -> bool:
        """Read both files from their beginnings again.

        Return False if no result was taken since the last rewind.

        This is necessary if a line gets another result after its first result was read. The API then does not
        know the line with its former status.
        """
        was_inside = bool(self._cursors)
        self._cursors.clear()
        return was_inside

    def has_settled(self, batch: Batch) -> bool:
        """Return True if the batch counts results that were not taken."""
        counts = batch.request_counts
        return counts is not None and counts.completed + counts.failed > self._next

    def check(self, batch: Batch) -> None:
        """Check that each line of an ended batch was taken.

        Raises:
            ResultsMissing: some lines have no result, for example because the input is invalid.
        """
        if self._next < len(self._numbers):
            raise ResultsMissing(batch, len(self._numbers) - self._next, len(self._numbers))
