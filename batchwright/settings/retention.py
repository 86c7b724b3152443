"""How long things are kept (R14), and what the audit may mend."""

from pydantic import Field
from pydantic_settings import BaseSettings


class RetentionSettings(BaseSettings):
    completed_file_retention_days: int = Field(
        30, ge=1, description="life of a completed batch's files, where the batch sets none"
    )
    partial_file_retention_days: int = Field(14, ge=1, description="the same, of other batches")
    metadata_retention_days: int = Field(
        90, ge=1, description="life of an ended batch's description, or as long as its files if that is more"
    )
    retention_grace_seconds: float = Field(
        3600.0, ge=60, description="time between the end of a file's life and its deletion"
    )
    orphan_hours: float = Field(
        48.0, ge=24, description="age from which objects that no row names, and files without object, go"
    )
    audit_repair: bool = Field(
        False, description="the daily audit mends what `batchwright audit --repair` would, and not only tells"
    )
