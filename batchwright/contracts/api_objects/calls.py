"""Objects that the API returns for single calls (requests that a client sends without a file).

Besides the declared fields, a `ResponseObject` has fields of its request and of the backend's answer.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from batchwright.contracts.calls import CallStatus


class ResponseError(BaseModel):
    code: str
    message: str


class JobObject(BaseModel):
    """A single request that a client has submitted as an asynchronous job, to get its result later.

    This object is the body of responses. When the job ends, it is also the body of the callback, the request
    to the URL that the client has named. `result` is the body of the backend's response. If the result is too
    large for a callback, the callback has `result` null and `result_omitted` true. Times are in Unix seconds.
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
    """An asynchronous job that a client has just submitted.

    `callback_secret` is the key that signs the callback, the request that reports the end of the job. It is
    null if the job has no callback.
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
