"""The doors of the chaos runs see everything that differs from the files of a batch."""

from collections.abc import Sequence

import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from pydantic import JsonValue

from tests.chaos.doors import message_differences
from tests.chaos.load import Door, submission
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


def test_consecutive_batches_come_through_every_door() -> None:
    for seed in range(5):
        made = [submission(seed, number).door for number in range(2 * len(Door))]
        assert sorted(made) == sorted([*Door, *Door])
