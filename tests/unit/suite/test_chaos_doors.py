"""The doors of the chaos runs (ways to create batches) report everything that differs from the files of a
batch.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from openai.types import Batch
from pydantic import JsonValue

from tests.chaos.doors import ObjectReferences, StartTimes, message_differences
from tests.chaos.load import Door, Seen, Submission, submission
from tests.chaos.objects import TenantData
from tests.chaos.user import User
from tests.e2e.batches import ResultLine

MESSAGE: dict[str, JsonValue] = {"id": "msg_1", "type": "message", "content": []}
ANSWERED = ResultLine.model_validate(
    {"id": "1", "custom_id": "a", "response": {"status_code": 200, "body": MESSAGE}, "error": None}
)
CANCELLED = ResultLine.model_validate(
    {"id": "2", "custom_id": "b", "response": None, "error": {"code": "batch_cancelled", "message": ""}}
)


def _result(custom_id: str, type: str, **more: JsonValue) -> MessageBatchIndividualResponse:
    return MessageBatchIndividualResponse.construct(custom_id=custom_id, result={"type": type, **more})


def _differences(
    results: Sequence[MessageBatchIndividualResponse], lines: Sequence[ResultLine], **counts: int
) -> list[str]:
    shown = MessageBatch.construct(processing_status="ended", request_counts={"expired": 0, **counts})
    return message_differences(shown, results, lines, ("a", "b"))


SUCCEEDED, CANCELED = _result("a", "succeeded", message=MESSAGE), _result("b", "canceled")


def test_message_results_that_are_the_lines_of_the_files_pass() -> None:
    assert _differences([SUCCEEDED, CANCELED], [ANSWERED, CANCELLED], succeeded=1, canceled=1) == []
    assert _differences([_result("a", "canceled"), CANCELED], [], canceled=2) == []


@pytest.mark.parametrize(
    ("results", "succeeded"),
    [
        pytest.param([SUCCEEDED], 1, id="a lost result"),
        pytest.param([SUCCEEDED, CANCELED, CANCELED], 1, id="a doubled result"),
        pytest.param([_result("a", "expired"), CANCELED], 1, id="another type"),
        pytest.param([_result("a", "succeeded", message={"id": "msg_2"}), CANCELED], 1, id="another message"),
        pytest.param([SUCCEEDED, CANCELED], 2, id="other counts"),
    ],
)
def test_message_results_that_differ_from_the_files_break_a_promise(
    results: Sequence[MessageBatchIndividualResponse], succeeded: int
) -> None:
    assert len(_differences(results, [ANSWERED, CANCELLED], succeeded=succeeded, canceled=1)) == 1


class UserOfBatch(User):
    """A user with one batch, whose output file has the content `output`."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    async def insist(self, call: object) -> Any:
        return self._batch

    async def content(self, file_id: str | None) -> str:
        return "" if file_id is None else "output"


class OneObject(TenantData):
    """A bucket whose only object is the output of `batch_1`."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def get(self, name: str) -> bytes | None:
        return self._content if name == "out/batch_1_output.jsonl" else None


def _batch(**more: Any) -> Batch:
    return Batch.construct(id="batch_1", output_file_id="file-1", error_file_id=None, **more)


@pytest.mark.parametrize(
    ("state", "content", "differences"),
    [
        ("written", b"output", []),
        ("written", b"outp", ["has an output object that differs from the file"]),
        ("failed", b"output", ["has objects that are failed"]),
    ],
)
async def test_objects_that_are_missing_or_differ_from_the_files_break_a_promise(
    state: str, content: bytes, differences: list[str]
) -> None:
    batch = _batch(x_batchwright={"output_location": {"state": state}})
    seen = Seen(Submission([], {}, "completed"), batch.id)
    assert await ObjectReferences(OneObject(content)).check(UserOfBatch(batch), seen, batch) == differences


async def test_a_batch_that_begins_before_its_start_time_breaks_a_promise() -> None:
    seen = Seen(Submission([], {}, "completed"), "batch_1")
    broken: list[list[str]] = []
    for began_at in (None, 9, 10):
        batch = _batch(in_progress_at=began_at, x_batchwright={"start_at": 10})
        broken.append(await StartTimes().check(UserOfBatch(batch), seen, batch))
    assert broken == [[], ["began at 9, before 10"], []]


def test_consecutive_batches_come_through_every_door() -> None:
    for seed in range(5):
        made = [submission(seed, number).door for number in range(2 * len(Door))]
        assert sorted(made) == sorted([*Door, *Door])
