"""The results of a batch. The API returns completed and failed lines in two lists; `InputOrder` merges the
lists in input order.
"""

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
    """An error that is raised if you read the response of a failed request. `result.error` is the reason."""

    def __init__(self, result: "Result", error: LineError) -> None:
        super().__init__(f"Request {result.custom_id!r} failed with {error.code}: {error.message}")
        self.result = result


class ResultsMissing(Exception):
    """An error that is raised if a batch has ended and some lines have no result. `batch.errors` may contain
    the reasons.
    """

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
    """The result of one request. The method `response` converts the response to an object of the official
    client.
    """

    __slots__ = ()

    def response(self, model: type[_Model]) -> _Model:
        """Return the response as an object of the official client, for example a `ChatCompletion`.

        The fields are not validated. The official client does not validate them either.

        Raises:
            RequestFailed: the request failed.
            msgspec.ValidationError: the body is not a JSON object.
        """
        if self.error is not None:
            raise RequestFailed(self, self.error)
        return as_model(model, self.content)


def as_model(model: type[_Model], data: bytes) -> _Model:
    """Convert a JSON object to a class of the official client, without validating its fields.

    Raises:
        msgspec.ValidationError: `data` is not a JSON object.
    """
    fields = msgspec.json.decode(data, type=dict[str, object])
    # Names with an underscore are parameters of `construct`. A backend must not set them.
    return model.construct(None, **{name: value for name, value in fields.items() if name[:1] != "_"})


class InputOrder:
    """An object that merges the results of completed and failed lines in the order of the input.

    The API returns completed and failed lines in separate lists. For each result that the caller takes, the
    caller calls `take`. The object remembers the last result that was taken from each list. `parameters`
    returns the query for the next results of a list, after this last result.

    Args:
        custom_ids: custom ids of all lines, in input order.
    """

    def __init__(self, custom_ids: Iterable[str]) -> None:
        self._numbers = {custom_id: number for number, custom_id in enumerate(custom_ids)}
        self._next = 0
        self._cursors: dict[Status, str] = {}

    def parameters(self, status: Status) -> dict[str, object]:
        """Return the query parameters that request the next results with this status, completed or failed.

        The parameters are for `GET /v1/batches/{id}/x/results`.
        """
        after = self._cursors.get(status)
        return {"status": status} if after is None else {"status": status, "after": after}

    def is_taken(self, result: Result) -> bool:
        """Return True if the caller has already taken the result of this line with `take`."""
        return self._numbers[result.custom_id] < self._next

    def next_of(self, heads: Mapping[Status, Result | None]) -> tuple[Status, Result] | None:
        """Return the status and the result of the next line in input order.

        Return None if the result of the next line is not in `heads`.

        Args:
            heads: for each status, the first result for which `take` was not called yet; None if no such
                result has arrived.
        """
        for status, head in heads.items():
            if head is not None and self._numbers[head.custom_id] == self._next:
                return status, head
        return None

    def take(self, status: Status, result: Result) -> None:
        """Record that the caller has got this result, which `next_of` returned.

        The next call of `next_of` then looks for the result of the following line.
        """
        self._next += 1
        self._cursors[status] = result.id

    def rewind(self) -> bool:
        """Make the next requests read both lists of results from the beginning.

        Call this if the API rejects a request because the list no longer contains the result that the
        parameter `after` names. For example, if a line failed at first and succeeded later, the list of
        failed lines no longer contains the result of this line.

        Return False if no result was taken before, or since the last call of `rewind`. In this case, the
        rejected request already was for the beginning of a list, so the rejection has another reason.
        """
        was_inside = bool(self._cursors)
        self._cursors.clear()
        return was_inside

    def has_settled(self, batch: Batch) -> bool:
        """Return True if the counts of the batch show more final results than the caller has taken with
        `take`.
        """
        counts = batch.request_counts
        return counts is not None and counts.completed + counts.failed > self._next

    def check(self, batch: Batch) -> None:
        """Raise an error if a line has no result. Call this after the batch has ended.

        Raises:
            ResultsMissing: some lines have no result, for example because the input is invalid.
        """
        if self._next < len(self._numbers):
            raise ResultsMissing(batch, len(self._numbers) - self._next, len(self._numbers))
