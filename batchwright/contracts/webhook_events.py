"""Events about the end of batches, in OpenAI's webhook format. This module does not send them."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from batchwright.contracts.message import Message
from batchwright.contracts.openai import BatchStatus


class EventType(StrEnum):
    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"

    @classmethod
    def of(cls, status: BatchStatus) -> "EventType":
        """Return the event type for the end of a batch.

        Raises ValueError if `status` is not a final status.
        """
        return cls(f"batch.{status}")


class EventData(Message):
    id: str


class BatchEvent(Message):
    """Event about the end of a batch. `created_at` is the time of the end, in Unix seconds."""

    id: str
    object: Literal["event"] = "event"
    type: EventType
    created_at: int
    data: EventData


def batch_event(event_id: str, batch_id: str, status: BatchStatus, ended_at: datetime) -> BatchEvent:
    """Return the event about the end of a batch. Raises ValueError if `status` is not a final status."""
    return BatchEvent(
        id=event_id,
        type=EventType.of(status),
        created_at=int(ended_at.timestamp()),
        data=EventData(id=batch_id),
    )
