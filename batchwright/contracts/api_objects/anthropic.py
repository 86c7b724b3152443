"""Objects of Anthropic's Message Batches API as Batchwright returns them.

Times are in UTC, in whole seconds, and serialized as RFC 3339 with `Z`.
"""

from datetime import datetime
from typing import Literal

from batchwright.contracts.api_objects.openai import ApiObject, BatchObject

ANTHROPIC_VERSION_HEADER = "anthropic-version"
DEFAULT_ANTHROPIC_VERSION = "2023-06-01"  # sent to backends if the creation of a batch named no version

ProcessingStatus = Literal["in_progress", "canceling", "ended"]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
]


class MessageCounts(ApiObject):
    """The numbers of requests of a message batch, by the state of the requests.

    The sum of these numbers is the number of all requests of the message batch.
    """

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatchObject(ApiObject):
    """A message batch: a batch of the endpoint `/v1/messages`, in the form of Anthropic's API.

    When the results are no longer available, `archived_at` has a time and `results_url` is null.
    """

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: ProcessingStatus
    request_counts: MessageCounts
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    archived_at: datetime | None
    results_url: str | None


class RelaxedMessageBatchObject(MessageBatchObject):
    """A message batch, as the API returns it in the profile `relaxed`.

    This profile adds the field `x_batchwright` to the fields of Anthropic's API. `x_batchwright` contains the
    same batch in the form of OpenAI's API.
    """

    x_batchwright: BatchObject


class MessageBatchPage(ApiObject):
    data: list[MessageBatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class RelaxedMessageBatchPage(ApiObject):
    data: list[RelaxedMessageBatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(ApiObject):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageErrorDetails(ApiObject):
    type: ErrorType
    message: str


class MessageErrorObject(ApiObject):
    """The body of every error response, and the error of a failed request in a message batch's results."""

    type: Literal["error"] = "error"
    error: MessageErrorDetails
    request_id: str | None
