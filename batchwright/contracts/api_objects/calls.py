"""Objects that the API returns for single calls (requests that a client sends without a file).

Besides the declared fields, a `ResponseObject` has other fields. If the backend has answered the request
successfully, these are the fields of the answer. Otherwise, they are fields of the client's request.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from batchwright.contracts.calls import CallStatus


class ResponseError(BaseModel):
    code: str
    message: str


class JobObject(BaseModel):
    """A single request that a client has submitted as an asynchronous job, to get its result later.

    The API returns this object. If the client has named a callback URL, this object is also sent to the URL
    when the job ends. `result` is the body of the backend's response. If the result is too large for a
    callback, `result` is null and `result_omitted` is true in the callback. Times are in Unix seconds.
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
