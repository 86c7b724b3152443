"""What the tables of uploads and of idempotency keys hold, as values."""

from datetime import datetime
from typing import Literal

from batchwright.contracts.message import Message
from batchwright.database.rows import Purpose

UploadStatus = Literal["pending", "completed", "cancelled", "expired"]


class UploadRow(Message):
    """A file that comes in parts. `status` is the stored one: a pending upload past its time is expired."""

    id: str
    tenant: str
    purpose: Purpose
    filename: str
    mime_type: str
    bytes: int
    expires_after_seconds: int | None = None  # of the file, once it is there
    status: UploadStatus = "pending"
    created_at: datetime
    expires_at: datetime
    file_id: str | None = None
    completion: str | None = None  # digest of the parts it was completed with

    def status_at(self, now: datetime) -> UploadStatus:
        return "expired" if self.status == "pending" and self.expires_at <= now else self.status


class PartRow(Message):
    id: str
    tenant: str
    upload_id: str
    bytes: int
    storage_key: str
    created_at: datetime


class Claim(Message):
    """An Idempotency-Key in use: `fingerprint` tells the request, `made` is what it made, as JSON."""

    tenant: str
    operation: str
    key: str
    fingerprint: str
    made: str
    created_at: datetime
