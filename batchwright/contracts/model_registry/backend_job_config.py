"""Registry settings of models whose requests run as jobs: the backend accepts a job, and responds later."""

import re
from typing import Literal

from pydantic import Field, field_validator

from batchwright.contracts.model_registry.config_base import PositiveDuration, RegistryEntry

ModelKind = Literal["sync", "poll", "callback"]
_PATH = re.compile(r"/[!-~]*")
_FIELD = r"^([^.\s]+(\.[^.\s]+)*)?$"


class JobConfig(RegistryEntry):
    """Settings of a model whose backend works with jobs: it accepts a request, and answers it later.

    A field name with dots, such as `data.id`, is the path to a field in nested objects. `{id}` in a URL path
    stands for the id of the job.
    """

    submit_endpoint: str = Field(
        default="", max_length=512, description="path to submit jobs; unset: the line's own `url`"
    )
    poll_endpoint_template: str = Field(
        default="",
        max_length=512,
        description="path to poll a job, such as `/status/{id}`; required for `poll`, polled in addition "
        "to the "
        "callback for `callback`",
    )
    cancel_endpoint_template: str = Field(
        default="",
        max_length=512,
        description="path to cancel a job that is no longer needed; unset: such jobs are not cancelled",
    )
    cancel_method: Literal["POST", "DELETE"] = Field(
        default="POST", description="HTTP method to cancel a job"
    )
    poll_interval: PositiveDuration = Field(default=2.0, description="time between two polls of a job")
    max_poll_time: PositiveDuration = Field(
        default=600.0, description="time limit of a job, after which the line has used an attempt"
    )
    id_field: str = Field(
        default="",
        pattern=_FIELD,
        description="field with the job's id in the response to a submit; unset: `job_id`, else `id`",
    )
    status_field: str = Field(
        default="status",
        min_length=1,
        pattern=_FIELD,
        description="field with the status; success: `success`, `succeeded`, `completed`, `done`; "
        "failure: `failed`, "
        "`error`, `cancelled`, `canceled`, `expired`; with any other value the job is still running",
    )
    result_field: str = Field(
        default="",
        pattern=_FIELD,
        description="field with the line's response; unset: `result` if it exists, else the whole body",
    )
    callback_header: str = Field(
        default="X-Callback-Url",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="header of a submit with the URL that the backend calls once at the end of the job",
    )
    callback_field: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="top-level field of a submit's body with that URL; unset: only the header",
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
