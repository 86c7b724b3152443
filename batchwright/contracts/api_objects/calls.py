"""Objects that the routes of single calls return.

Besides the declared fields, a `ResponseObject` has fields of its request and of the backend's answer.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from batchwright.contracts.calls import CallStatus


class ResponseError(BaseModel):
    code: str
    message: str


class JobObject(BaseModel):
    """A request that was submitted to the queue.

    This object is the body of responses, and of the callback when the job ends. `result` is the body of the
    backend's response. If the result is too large for a callback, the callback has `result` null and
    `result_omitted` true. Times are in Unix seconds.
    """

    job_id: str
    model: str
    status: Literal["queued", "processing", "completed", "failed", "cancelled"]
    result: JsonValue = None
    result_omitted: bool = False
    error: ResponseError | None = None
    created_at: int
    completed_at: int | None = None


class NewJobObject(JobObject):
    """A job that was just submitted to the queue.

    `callback_secret` is the key that signs the callback of the job; null if the job has no callback.
    """

    callback_secret: str | None = None


class ResponseObject(BaseModel):
    """A response of OpenAI's Responses API. `created_at` is in Unix seconds."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: CallStatus
    background: bool
    error: ResponseError | None
    model: str
    output: list[JsonValue]
