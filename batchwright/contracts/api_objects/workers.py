"""Objects that show operators the live worker processes."""

from typing import Literal

from pydantic import BaseModel, Field


class WorkerObject(BaseModel):
    """A live worker process, with its latest report about itself."""

    id: str = Field(description="host:pid")
    started_at: int | None = Field(description="Unix time in seconds")
    reported_at: int = Field(description="Unix time in seconds")
    in_flight: int = Field(description="requests that it has sent and that are not answered")
    slices: int = Field(description="slices that it runs")
    batches: int = Field(description="batches of these slices")
    queues: list[str] = Field(description="task queues that it polls, sorted")
    registry: str = Field(description="fingerprint of its model registry; workers in order have the same")


class WorkerList(BaseModel):
    object: Literal["list"] = "list"
    data: list[WorkerObject] = Field(description="sorted by id")
