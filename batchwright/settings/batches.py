"""How a batch goes: grace, patience, plans and slices."""

from pydantic import Field
from pydantic_settings import BaseSettings

_MIB = 1024 * 1024


class BatchSettings(BaseSettings):
    cancel_grace_seconds: float = Field(
        30.0, ge=0, le=600, description="time for requests in flight when a batch is cancelled or paused (R3)"
    )
    expiry_grace_seconds: float = Field(
        5.0, ge=0, le=600, description="time for requests in flight when the window closes (R4)"
    )
    finalize_patience_seconds: float = Field(
        86_400.0, ge=60, description="how long finalization is retried before the batch fails (S0-46)"
    )
    heartbeat_timeout_seconds: float = Field(
        30.0, ge=10, description="silence after which a worker counts as dead"
    )
    slice_seconds: float = Field(
        30.0, ge=1, description="a slice's turn, from its first permit; without one it ends as late"
    )
    outstanding_slices: int = Field(32, ge=1, le=500, description="scheduled at once per model run")
    inline_slices: int = Field(
        0,
        ge=0,
        le=64,
        description="a batch with at most so many slices, of all its models, has no model runs of its own, "
        "and so takes half the steps: for many small batches, 16; 0: every batch has them",
    )
    continue_as_new_events: int = Field(
        0,
        ge=0,
        description="history length at which a model run continues as new; 0: when the server suggests it",
    )
    plan_order: str = Field(
        "prefix",
        pattern="^(prefix|hash|file)$",
        description="order of lines inside a plan: prefix, hash or file (R17)",
    )
    deduplicate: bool = Field(
        False, description="ask lines that ask the same once, in batches that do not say whether to"
    )
    slice_lines: int = Field(
        1024,
        ge=1,
        le=10_000,
        description="lines per slice at most; a 16th of its model's lines, of more than 16 times as many an "
        "eighth of what is left; more than 256 as far as they are 1 MiB",
    )
    slice_bytes: int = Field(4 * _MIB, ge=1024, description="bytes per slice at most, or one line")
