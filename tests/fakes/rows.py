"""What the tables in memory hold, and how it is looked at."""

from datetime import date, datetime

from batchwright.contracts.batch import BatchOrder
from batchwright.database.audits_base import Audited
from batchwright.database.callbacks_base import Told
from batchwright.database.dead_letters_base import Buried
from batchwright.database.errors import UnknownCursor
from batchwright.database.quotas_base import QuotaRow
from batchwright.database.rows import (
    BatchRow,
    FileRow,
    ModelChange,
    ModelCount,
    RateChange,
    ServedModel,
    SliceProgress,
    WorkerBeat,
)
from batchwright.database.tenant_rows import FoundKey, OrganizationRow, TenantRow, UserRow
from batchwright.database.upload_rows import Claim, PartRow, UploadRow
from batchwright.database.waiting_base import Waiting
from batchwright.rules.quotas import Enqueued, Quota
from batchwright.rules.states import LIVE
from batchwright.rules.traffic import LaneTraffic

Key = tuple[str, str]  # tenant, id


class Rows:
    """What the tables hold; an exception in `failing` is raised by every call until it is taken away."""

    def __init__(self) -> None:
        self.files: dict[Key, FileRow] = {}
        self.batches: dict[Key, BatchRow] = {}
        self.progress: dict[tuple[str, str, str, int], SliceProgress] = {}
        self.models: dict[tuple[str, str], ServedModel] = {}
        self.uploads: dict[Key, UploadRow] = {}
        self.parts: dict[tuple[str, str, str], PartRow] = {}
        self.swept: dict[Key, datetime] = {}
        self.cleared: dict[Key, datetime] = {}  # ended batches whose objects are gone
        self.successes: dict[str, datetime] = {}
        self.audits: dict[str, Audited] = {}
        self.marked_at: datetime | None = None
        self.claims: dict[tuple[str, str, str], Claim] = {}
        self.tenants: dict[str, TenantRow] = {}
        self.organizations: dict[str, OrganizationRow] = {}
        self.users: dict[Key, UserRow] = {}  # without their keys, which have their names
        self.api_keys: dict[str, FoundKey] = {}  # by prefix
        self.key_lookups = 0
        self.chances: dict[tuple[str, str, str], BatchOrder] = {}
        self.dead_letters: dict[str, Buried] = {}  # by id
        self.dead_letter_retries: dict[Key, tuple[str, BatchOrder]] = {}  # the origin's id
        self.rates: dict[str, RateChange] = {}
        self.quotas: dict[str, QuotaRow] = {}
        self.enqueued: dict[Key, Enqueued] = {}
        self.admissions: dict[Key, tuple[Quota, int, float]] = {}  # how much of which, since when
        self.requests: dict[str, tuple[float, int]] = {}  # when the minute began, how many since
        self.spent: dict[tuple[str, str, date, str], int] = {}  # tenant, key's id, day, worker
        self.beats: dict[str, WorkerBeat] = {}
        self.traffic: dict[str, list[LaneTraffic]] = {}  # of the workers that beat
        self.callbacks: dict[str, tuple[Told | None, datetime]] = {}  # None: emptied
        self.waiting: dict[tuple[str, str, str, str], Waiting] = {}
        self.model_changes: dict[str, ModelChange] = {}
        self.failing: Exception | None = None

    def enter(self) -> "Rows":
        if self.failing is not None:
            raise self.failing
        return self

    def readers_of(self, tenant: str, file_id: str) -> list[BatchRow]:
        live = [row for (owner, _), row in self.batches.items() if owner == tenant and row.status in LIVE]
        return [row for row in live if row.order.input_file_id == file_id]

    def is_known(self, file: FileRow, now: datetime) -> bool:
        """An expired file is unknown, unless a live batch reads it that was created before."""
        until, readers = file.expires_at, self.readers_of(file.tenant, file.id)
        return until is None or until > now or any(row.order.created_at < until for row in readers)


def with_keys(rows: Rows) -> list[UserRow]:
    """The users, by tenant and name."""
    keys = sorted((found.key for found in rows.api_keys.values()), key=lambda key: (key.created_at, key.id))
    return [
        row.model_copy(
            update={"keys": [key.id for key in keys if (key.tenant, key.user_name) == (row.tenant, row.name)]}
        )
        for _, row in sorted(rows.users.items())
    ]


def position(ids: list[str], after: str | None) -> int:
    if after is None:
        return 0
    if after not in ids:
        raise UnknownCursor(after)
    return ids.index(after) + 1


def not_before(row: BatchRow, at: datetime) -> datetime:
    earlier = (row.order.created_at, row.in_progress_at, row.finalizing_at, row.cancel_requested_at)
    return max(at, *(time for time in earlier if time is not None))


def slices(rows: Rows, tenant: str, batch_id: str) -> list[SliceProgress]:
    return [told for key, told in rows.progress.items() if key[:2] == (tenant, batch_id)]


def per_model(slices: list[SliceProgress]) -> list[ModelCount]:
    return [
        ModelCount(
            model=model,
            lines=0,
            completed=sum(told.completed for told in slices if told.model == model),
            failed=sum(told.failed for told in slices if told.model == model),
        )
        for model in sorted({told.model for told in slices})
    ]
