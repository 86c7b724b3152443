"""Webhook events about batches and single calls, in OpenAI's format."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from batchwright.contracts.api_objects.openai import BatchCost, RequestCounts, UsageObject
from batchwright.contracts.message import Message
from batchwright.contracts.temporal_payloads.batch import ErrorCount
from batchwright.contracts.terms import BatchStatus


class EventType(StrEnum):
    """Types of events about batches and single calls.

    OpenAI's API has the same types for the four final statuses of a batch and for the end of a response.
    """

    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    BATCH_IN_PROGRESS = "batch.in_progress"
    BATCH_AT_RISK = "batch.at_risk"  # the first forecast past the completion window
    BATCH_PAUSED = "batch.paused"
    RESPONSE_COMPLETED = "response.completed"  # a single call in the background has ended
    RESPONSE_FAILED = "response.failed"
    RESPONSE_CANCELLED = "response.cancelled"
    RESPONSE_INCOMPLETE = "response.incomplete"

    @classmethod
    def of_end(cls, status: BatchStatus) -> "EventType":
        """Return the event type for the final status of a batch. Raises ValueError for any other status."""
        if not status.is_terminal:
            raise ValueError(f"batch.{status} is not the end of a batch")
        return cls(f"batch.{status}")


END_EVENTS = (
    EventType.BATCH_COMPLETED,
    EventType.BATCH_FAILED,
    EventType.BATCH_EXPIRED,
    EventType.BATCH_CANCELLED,
)


CALL_EVENTS = (
    EventType.RESPONSE_COMPLETED,
    EventType.RESPONSE_FAILED,
    EventType.RESPONSE_CANCELLED,
    EventType.RESPONSE_INCOMPLETE,
)
TEST_BATCH = "batch_" + 32 * "0"  # the batch of test events, which does not exist


class EventDetails(Message):
    """The state of a batch when Batchwright first tried to deliver the event.

    A test event of an endpoint has no batch. Its details have only the field `test`, which is True.
    """

    test: bool = False
    status: BatchStatus | None = None
    completion_window: str | None = None
    created_at: int | None = None
    expires_at: int | None = None
    request_counts: RequestCounts | None = None
    usage: UsageObject | None = None
    cost: BatchCost | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    metadata: dict[str, str] | None = None
    errors_summary: list[ErrorCount] = []


class EventData(Message):
    """The content of an event: the id of the batch or single call, and optionally the state of the batch.

    `x_batchwright` is the state of the batch. It is None if the webhook endpoint's setting `details` is off.
    """

    id: str
    x_batchwright: EventDetails | None = None


class BatchEvent(Message):
    """Event about a batch or a single call. `created_at` is the time of the event, in Unix seconds."""

    id: str
    object: Literal["event"] = "event"
    type: EventType
    created_at: int
    data: EventData

    def body(self) -> bytes:
        """Return the event as JSON, for the body of the webhook request.

        If the event does not contain the state of the batch, the body has only the fields that OpenAI sends.
        """
        thin = {"data": {"x_batchwright"}} if self.data.x_batchwright is None else None
        return self.model_dump_json(exclude=thin).encode()


def batch_event(
    event_id: str, batch_id: str, type: EventType, at: datetime, details: EventDetails | None = None
) -> BatchEvent:
    return BatchEvent(
        id=event_id,
        type=type,
        created_at=int(at.timestamp()),
        data=EventData(id=batch_id, x_batchwright=details),
    )
