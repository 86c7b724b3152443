"""Settings of running batches (grace periods, plans, slices), and of how long files and rows are kept."""

from pydantic import Field
from pydantic_settings import BaseSettings

from batchwright.settings.setting_levels import TUNING


class BatchSettings(BaseSettings):
    cancel_grace_seconds: float = Field(
        30.0,
        ge=0,
        le=600,
        description="Seconds that requests in flight have to complete after a batch is cancelled or "
        "paused. `0`: they are aborted at once.",
        json_schema_extra=TUNING,
    )
    expiry_grace_seconds: float = Field(
        5.0,
        ge=0,
        le=600,
        description="Seconds that requests in flight have to complete after the completion window has "
        "ended. `0`: they are aborted at once.",
        json_schema_extra=TUNING,
    )
    finalize_patience_seconds: float = Field(
        86_400.0, ge=60, description="Seconds that writing a batch's files is retried before the batch fails."
    )
    heartbeat_timeout_seconds: float = Field(
        30.0,
        ge=10,
        description="Seconds without a heartbeat after which a worker counts as lost and other workers "
        "continue its slices.",
    )
    slice_seconds: float = Field(
        30.0,
        ge=1,
        description="Seconds after its first request for which a slice keeps its place at a worker although "
        "other slices wait for one. While no other slice waits, it keeps its place until all its lines have "
        "results.",
        json_schema_extra=TUNING,
    )
    plan_order: str = Field(
        "prefix",
        pattern="^(prefix|hash|file)$",
        description="Order in which lines are sent. `prefix`: similar prompts together, so that backends "
        "can reuse their caches. `hash`: lines with equal system prompts together. `file`: "
        "the order of the input file.",
    )
    deduplicate: bool = Field(
        False,
        description="If true, equal requests of a batch are sent only once. A batch may choose for itself.",
        json_schema_extra=TUNING,
    )


class RetentionSettings(BaseSettings):
    completed_file_retention_days: int = Field(
        30,
        ge=1,
        description="Days that the files of a completed batch are kept, unless the batch sets this itself.",
        json_schema_extra=TUNING,
    )
    partial_file_retention_days: int = Field(
        14,
        ge=1,
        description="Days that the files of all other ended batches are kept.",
        json_schema_extra=TUNING,
    )
    metadata_retention_days: int = Field(
        90,
        ge=1,
        description="Days that the database rows of an ended batch are kept. They are kept at least as "
        "long as its files.",
        json_schema_extra=TUNING,
    )
    audit_log_retention_days: int = Field(
        400,
        ge=1,
        description="Days that entries of the audit log are kept.",
        json_schema_extra=TUNING,
    )
    consistency_repair: bool = Field(
        False,
        description="If true, the daily check makes the repairs of `batchwright consistency --repair`. "
        "Otherwise it only reports differences.",
    )
