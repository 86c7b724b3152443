"""Single calls: requests that clients send one at a time, and whose answers may come later."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from batchwright.contracts.message import Message
from batchwright.contracts.terms import Endpoint

ANSWER_LIFETIME = timedelta(days=1)  # how long the answer of a call can be fetched after its end


class CallStatus(StrEnum):
    """The status of a call (single request of a client), in the terms of OpenAI's Responses API."""

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
    """A new call, before it is stored. A call is a single request of a client.

    Attributes:
        group: name of the call's group. Only calls of the same group can be lines of the same batch.
        notifies: True if webhook endpoints receive an event when the call ends.
        echoed: fields of the client's request, as a JSON object; empty if there are none. As long as the call
            has no answer, the API returns these fields to clients that request the call.
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
    """A stored call. A call is a single request of a client that is processed as a line of a batch.

    Attributes:
        batch_id: id of the batch that has the call as a line.
        request: body for the backend, as JSON; empty after the call has ended.
        notifies: True if webhook endpoints receive an event when the call ends.
        echoed: fields of the client's request, as a JSON object; empty if there are none. As long as the call
            has no answer, the API returns these fields to clients that request the call.
        answer: result of the call, as a line of an output or error file. None while the call runs, and if the
            call ended without a result.
        error: first error of the batch, such as the reason why the batch failed; empty if the batch has no
            error. If the call failed without an `answer`, the API shows `error` as the reason.
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
    """The result and the final status of a call, which is a single request of a client.

    `line` is the result as a line of an output or error file.
    """

    id: str
    status: CallStatus
    line: bytes = Field(repr=False)


class RollingBatch(Message):
    """Settings of a rolling batch: a batch that collects single requests of clients (calls) as its lines.

    The batch accepts calls of the group `group` for about `open_seconds` seconds after its start.
    """

    group: str
    open_seconds: float
