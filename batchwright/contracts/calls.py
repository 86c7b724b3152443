"""Single calls: requests that clients send one at a time, and whose answers may come later."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from batchwright.contracts.message import Message
from batchwright.contracts.terms import Endpoint

ANSWER_LIFETIME = timedelta(days=1)  # how long the answer of a call can be fetched after its end


class CallStatus(StrEnum):
    """Status of a call, in the terms of OpenAI's Responses API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"  # never stored; shown once the call's batch runs
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"  # the backend stopped the response early
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self not in (CallStatus.QUEUED, CallStatus.IN_PROGRESS)


class NewCall(Message):
    """A call to be stored.

    Calls with the same `group` may be lines of the same batch. If `notifies` is True, the end of the call is
    an event for webhooks. `echoed` is a JSON object with the fields of the request that a response without an
    answer has; empty if there are none.
    """

    tenant: str
    id: str
    group: str
    endpoint: Endpoint
    model: str
    request: bytes = Field(repr=False)  # body for the backend, as JSON
    notifies: bool
    echoed: bytes = Field(default=b"", repr=False)


class Call(Message):
    """A stored call. `notifies` is True if its client does not wait for it.

    `request` is empty once the call has ended. `echoed` stays, as in `NewCall`.

    `answer` is the line of an output or error file with the call's result. It is None until the call has
    ended. It stays None if the call ended without a result. In this case, if the batch has failed, `error`
    says why.
    """

    tenant: str
    id: str
    batch_id: str
    endpoint: Endpoint
    model: str
    request: bytes = Field(repr=False)
    echoed: bytes = Field(default=b"", repr=False)
    notifies: bool
    status: CallStatus
    created_at: datetime
    ended_at: datetime | None = None
    answer: bytes | None = Field(default=None, repr=False)
    error: str = ""


class CallAnswer(Message):
    """The result of a call: a line of an output or error file, and the resulting status of the call."""

    id: str
    status: CallStatus
    line: bytes = Field(repr=False)


class RollingBatch(Message):
    """Settings of a rolling batch, whose lines are single calls.

    Calls of `group` become lines of the batch until it is about `open_seconds` old.
    """

    group: str
    open_seconds: float
