"""Content of the fake tables in memory, and helper functions that read it."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from batchwright.contracts.model_registry.stored_models import ModelChange, RateChange, ServedModel
from batchwright.contracts.temporal_payloads.batch import BatchForecast, BatchOrder, ModelCounts, ModelUsage
from batchwright.contracts.terms import HoldKind, Quota
from batchwright.database.errors import UnknownCursor
from batchwright.database.records import (
    BackendLoad,
    BatchRow,
    BudgetGroupRow,
    FileRow,
    IdempotencyClaim,
    InteractiveRate,
    PartRow,
    SliceProgress,
    StoredApiKey,
    TenantRow,
    UploadRow,
    WorkerHeartbeat,
)
from batchwright.database.tables.batches.dead_letters import StoredDeadLetter
from batchwright.database.tables.batches.progress import ProgressSample
from batchwright.database.tables.batches.waiting_reasons import WaitingRow
from batchwright.database.tables.callbacks import ReceivedCallback
from batchwright.database.tables.operations.audit_log import RecordedAction
from batchwright.database.tables.operations.consistency_checks import RecordedConsistencyCheck
from batchwright.database.tables.schedules import ScheduleRow, ScheduleRunRow
from batchwright.database.tables.tenants.quota_records import QuotaRow
from batchwright.database.tables.webhooks.webhook_deliveries import WebhookAttempt, WebhookDelivery
from batchwright.database.tables.webhooks.webhook_endpoints import WebhookEndpoint
from batchwright.rules.batch_states import LIVE_STATES
from batchwright.rules.forecast.model_queue import ModelSpeed
from batchwright.rules.input.custom_id_search import CustomIdPart
from batchwright.rules.results.token_usage import total_usage
from batchwright.rules.tenants.quotas import BudgetGroup, DailyAmounts, EnqueuedWork
from batchwright.rules.worker_stats import UpstreamTraffic

if TYPE_CHECKING:
    from tests.fakes.tables.calls import OpenBatch, StoredRow

Key = tuple[str, str]  # tenant, id


def files_follow(row: BatchRow) -> bool:
    return row.files_pending_until is not None and row.files_pending_until > datetime.now(UTC)


class Rows:
    """The content of all fake tables.

    If a test sets `failing` to an exception, each call of a table raises it. `clock` is the database's own
    clock, which gives heartbeats their times.
    """

    def __init__(self) -> None:
        self.files: dict[Key, FileRow] = {}
        self.batches: dict[Key, BatchRow] = {}
        self.progress: dict[tuple[str, str, str, int], SliceProgress] = {}
        self.samples: dict[Key, list[ProgressSample]] = {}
        self.models: dict[tuple[str, str], ServedModel] = {}
        self.uploads: dict[Key, UploadRow] = {}
        self.parts: dict[tuple[str, str, str], PartRow] = {}
        self.swept: dict[Key, datetime] = {}
        self.cleared: dict[Key, datetime] = {}  # ended batches whose objects are gone
        self.deleted: dict[Key, datetime] = {}  # batches that their tenants deleted
        self.successes: dict[str, datetime] = {}
        self.consistency_checks: dict[str, RecordedConsistencyCheck] = {}
        self.audit_log: dict[str, RecordedAction] = {}
        self.audit_log_position = 0
        self.marked_at: datetime | None = None
        self.claims: dict[tuple[str, str, str], IdempotencyClaim] = {}
        self.tenants: dict[str, TenantRow] = {}
        self.budget_groups: dict[BudgetGroup, BudgetGroupRow] = {}
        self.api_keys: dict[str, StoredApiKey] = {}  # by prefix
        self.key_lookups = 0
        self.sessions: dict[
            bytes, tuple[str, datetime]
        ] = {}  # by the token's hash: the key's id, and the expiry
        self.reruns: dict[tuple[str, str, str], BatchOrder] = {}
        self.dead_letters: dict[str, StoredDeadLetter] = {}  # by id
        self.dead_letter_retries: dict[Key, tuple[str, BatchOrder]] = {}  # the origin's id
        self.interactive: dict[str, tuple[datetime, list[BackendLoad]]] = {}  # by process
        self.interactive_rates: dict[str, tuple[datetime, list[InteractiveRate]]] = {}  # by process
        self.rates: dict[str, RateChange] = {}
        self.holds: dict[tuple[HoldKind, str], datetime] = {}  # since when
        self.quotas: dict[str, QuotaRow] = {}
        self.enqueued: dict[Key, EnqueuedWork] = {}
        self.requested: dict[Key, EnqueuedWork] = {}  # by batches that wait for the quota
        self.attempts: dict[tuple[str, str, str], int] = {}  # bytes below a prefix of ingestion
        self.admissions: dict[Key, tuple[Quota, int, float]] = {}  # how much of which, since when
        self.requests: dict[str, tuple[float, int]] = {}  # when the minute began, how many since
        self.used: dict[tuple[str, str, date, str], DailyAmounts] = {}  # tenant, key's id, day, worker
        self.beats: dict[str, WorkerHeartbeat] = {}
        self.traffic: dict[str, list[UpstreamTraffic]] = {}  # of the workers that beat
        self.callbacks: dict[str, tuple[ReceivedCallback | None, datetime]] = {}  # None: emptied
        self.waiting: dict[tuple[str, str, str, str], WaitingRow] = {}
        self.pause_changes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.failed_pause_changes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.shown_pause_changes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.forecasts: dict[Key, BatchForecast] = {}
        self.custom_ids: dict[tuple[str, str, int], CustomIdPart] = {}
        self.speeds: dict[str, tuple[datetime, ModelSpeed]] = {}  # by model, with the time of the measurement
        self.model_changes: dict[str, ModelChange] = {}
        self.model_versions = 0
        self.schedules: dict[Key, ScheduleRow] = {}
        self.schedule_runs: dict[Key, list[ScheduleRunRow]] = {}  # newest first
        self.webhook_endpoints: dict[Key, WebhookEndpoint] = {}
        self.webhook_deliveries: dict[Key, WebhookDelivery] = {}
        self.webhook_attempts: dict[Key, list[WebhookAttempt]] = {}
        self.rolling_batches: dict[Key, OpenBatch] = {}  # by group
        self.calls: dict[Key, StoredRow] = {}
        self.failing: Exception | None = None
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def enter(self) -> "Rows":
        if self.failing is not None:
            raise self.failing
        return self

    def live_beats(self, max_age: timedelta) -> list[WorkerHeartbeat]:
        since = self.clock() - max_age
        return [beat for beat in self.beats.values() if beat.beat_at >= since]

    def readers_of(self, tenant: str, file_id: str) -> list[BatchRow]:
        mine = [row for (owner, _), row in self.batches.items() if owner == tenant]
        readers = [row for row in mine if row.status in LIVE_STATES or files_follow(row)]
        return [row for row in readers if row.order.input_file_id == file_id]

    def remove_batch(self, tenant: str, batch_id: str) -> bool:
        """Remove the row of a batch and all rows that belong to it. Return False if there is no such row."""
        self.cleared.pop((tenant, batch_id), None)
        self.samples.pop((tenant, batch_id), None)
        for key, order in list(self.reruns.items()):
            if tenant == key[0] and batch_id in (key[1], order.batch_id):
                del self.reruns[key]
        for key, (origin, _) in list(self.dead_letter_retries.items()):
            if tenant == key[0] and batch_id in (key[1], origin):
                del self.dead_letter_retries[key]
        for id, buried in list(self.dead_letters.items()):
            if (buried.tenant, buried.batch_id) == (tenant, batch_id):
                del self.dead_letters[id]
        for waiting in [key for key in self.waiting if key[:2] == (tenant, batch_id)]:
            del self.waiting[waiting]
        for part in [key for key in self.custom_ids if key[:2] == (tenant, batch_id)]:
            del self.custom_ids[part]
        return self.batches.pop((tenant, batch_id), None) is not None

    def held(self, tenant: str, model: str) -> HoldKind | None:
        """Return what an operator holds: the tenant or the model. Return None if neither is held."""
        of = ((HoldKind.TENANT, tenant), (HoldKind.MODEL, model))
        return next((kind for kind, name in of if (kind, name) in self.holds), None)

    def is_known(self, file: FileRow, now: datetime) -> bool:
        """Return True if callers still see the file: it has not expired, or a schedule or a live batch still
        reads it.

        The batch must have been created before the file expired.
        """
        until, readers = file.expires_at, self.readers_of(file.tenant, file.id)
        if until is None or until > now or self.is_scheduled(file):
            return True
        return any(row.order.created_at < until for row in readers)

    def is_scheduled(self, file: FileRow) -> bool:
        rows = self.schedules.values()
        return any((row.tenant, row.template.input_file_id) == (file.tenant, file.id) for row in rows)


def used_today(rows: Rows, tenant: str, key_id: str | None = None) -> DailyAmounts:
    today, found = datetime.now(UTC).date(), DailyAmounts()
    for (of, by, day, _), used in rows.used.items():
        if (of, day) == (tenant, today) and key_id in (None, by):
            found = found.plus(used)
    return found


def position(ids: list[str], after: str | None) -> int:
    if after is None:
        return 0
    if after not in ids:
        raise UnknownCursor(after)
    return ids.index(after) + 1


def not_before(row: BatchRow, at: datetime) -> datetime:
    earlier = (row.order.created_at, row.in_progress_at, row.finalizing_at, row.cancel_requested_at)
    return max(at, *(time for time in earlier if time is not None))


def add_sample(rows: Rows, tenant: str, batch_id: str, at: datetime) -> None:
    """Add a sample of the batch's present progress. `at` is the time of the sample."""
    row = rows.batches[tenant, batch_id]
    reported = sum(each.completed + each.failed for each in slices(rows, tenant, batch_id))
    sample = ProgressSample(at, row.completed + row.failed + reported)
    rows.samples.setdefault((tenant, batch_id), []).append(sample)


def slices(rows: Rows, tenant: str, batch_id: str) -> list[SliceProgress]:
    return [progress for key, progress in rows.progress.items() if key[:2] == (tenant, batch_id)]


def usage_per_model(slices: list[SliceProgress]) -> list[ModelUsage]:
    return [
        ModelUsage(
            model=model,
            requests=sum(each.completed for each in slices if each.model == model),
            **total_usage(each.usage for each in slices if each.model == model).model_dump(),
        )
        for model in sorted({each.model for each in slices})
    ]


def per_model(slices: list[SliceProgress]) -> list[ModelCounts]:
    return [
        ModelCounts(
            model=model,
            lines=0,
            completed=sum(progress.completed for progress in slices if progress.model == model),
            failed=sum(progress.failed for progress in slices if progress.model == model),
        )
        for model in sorted({progress.model for progress in slices})
    ]
