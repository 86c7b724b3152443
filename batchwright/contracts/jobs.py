"""What a registry says of models that are asked by jobs, submitted first, answered later (S4-12 to S4-18)."""

import re
from typing import Literal

from pydantic import Field, field_validator

from batchwright.contracts.entry import Entry, Positive

Kind = Literal["sync", "poll", "callback"]
_PATH = re.compile(r"/[!-~]*")
_FIELD = r"^([^.\s]+(\.[^.\s]+)*)?$"


class JobConfig(Entry):
    """Names of fields lead into objects by dots. Templates are paths at the backend; `{id}` is the job's."""

    submit_endpoint: str = Field(
        default="", max_length=512, description="where jobs are submitted; unset: at the line's own `url`"
    )
    poll_endpoint_template: str = Field(
        default="",
        max_length=512,
        description="where a job is asked after, such as `/status/{id}`; needed by `poll`, "
        "looked at beside the callback by `callback`",
    )
    cancel_endpoint_template: str = Field(
        default="",
        max_length=512,
        description="where a job is given up that is not waited for any more; unset: it is left to itself",
    )
    cancel_method: Literal["POST", "DELETE"] = Field(default="POST", description="how")
    poll_interval: Positive = Field(default=2.0, description="between two looks at a job")
    max_poll_time: Positive = Field(
        default=600.0, description="from submitting a job to giving it up, which uses an attempt of its line"
    )
    id_field: str = Field(
        default="", pattern=_FIELD, description="of the answer to a submit; unset: `job_id`, else `id`"
    )
    status_field: str = Field(
        default="status",
        min_length=1,
        pattern=_FIELD,
        description="its words: `success`, `succeeded`, `completed`, `done`; `failed`, `error`, `cancelled`, "
        "`canceled`, `expired`; with any other the job goes on",
    )
    result_field: str = Field(
        default="",
        pattern=_FIELD,
        description="the line's answer; unset: `result` where there is one, else all that was said",
    )
    callback_header: str = Field(
        default="X-Callback-Url",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="of a submit, with the URL that the backend calls once at the job's end",
    )
    callback_field: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="the same in the body of a submit, at its top; unset: only the header",
    )

    @field_validator("submit_endpoint")
    @classmethod
    def _is_path(cls, path: str) -> str:
        if path and (not _PATH.fullmatch(path) or "#" in path or "{" in path):
            raise ValueError("it must be a path at the backend, such as /jobs")
        return path

    @field_validator("poll_endpoint_template", "cancel_endpoint_template")
    @classmethod
    def _is_template(cls, path: str) -> str:
        plain = path.replace("{id}", "", 1)
        if path and (plain == path or not _PATH.fullmatch(plain) or set("{}#") & set(plain)):
            raise ValueError("it must be a path at the backend with {id} in it once, such as /status/{id}")
        return path
