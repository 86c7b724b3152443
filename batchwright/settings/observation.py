"""Metrics, logs, and how much of a batch is traced."""

from pydantic import Field
from pydantic_settings import BaseSettings


class ObservationSettings(BaseSettings):
    metrics_host: str = Field("127.0.0.1", description="address of the worker metrics and health")
    metrics_port: int = Field(0, ge=0, le=65535, description="of a worker's /metrics; 0: a free port")
    observe_seconds: float = Field(
        15.0, ge=1, description="how often a control worker counts live batches and queues for its metrics"
    )
    metrics_tenants: int = Field(
        20, ge=0, le=1000, description="tenants with metrics under their own name; all others are `other`"
    )
    log_format: str = Field("text", pattern="^(text|json)$", description="text or json")
    log_level: str = Field(
        "INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="DEBUG, INFO, WARNING or ERROR"
    )
    trace_request_ratio: float = Field(
        1.0, ge=0, le=1, description="share of requests with a span of their own, in traces that are kept"
    )
