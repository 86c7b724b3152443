"""What a database is: tables behind methods, every one of a tenant's rows asked for by its tenant.

All methods raise DatabaseUnavailable when the database cannot answer; a retry of any of them is safe.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from batchwright.contracts.batch import BatchOrder
from batchwright.contracts.openai import BatchStatus, ValidationError
from batchwright.contracts.registry import ModelConfig
from batchwright.database.audits_base import AuditsTable
from batchwright.database.callbacks_base import CallbacksTable
from batchwright.database.chances_base import ChancesTable
from batchwright.database.dead_letters_base import DeadLettersTable
from batchwright.database.quotas_base import QuotasTable
from batchwright.database.retention_base import RetentionTable
from batchwright.database.rows import (
    BatchRow,
    FileRow,
    LiveBatch,
    ModelChange,
    ModelCount,
    Outcome,
    RateChange,
    ServedModel,
    SliceProgress,
    Unsettled,
)
from batchwright.database.tenants_base import ApiKeysTable, OrganizationsTable, TenantsTable, UsersTable
from batchwright.database.uploads_base import ClaimsTable, UploadsTable
from batchwright.database.waiting_base import Waiting, WaitingTable
from batchwright.database.workers_base import WorkersTable


class FilesTable(Protocol):
    """An expired file is unknown, unless a live batch has it as its input (R14)."""

    async def insert(self, row: FileRow) -> None:
        """A second insert of the same row changes nothing."""
        ...

    async def get(self, tenant: str, file_id: str) -> FileRow | None: ...

    async def page(
        self, tenant: str, *, purpose: str | None, limit: int, ascending: bool, after: str | None
    ) -> tuple[list[FileRow], bool]:
        """At most `limit` rows by creation, and whether there are more. Raises UnknownCursor."""
        ...

    async def delete(self, tenant: str, file_id: str) -> FileRow | None:
        """The row there was; its object in storage is the caller's to delete. Raises FileInUse."""
        ...


class BatchesTable(Protocol):
    """Status moves return whether *this* call moved the row; a second run finds it moved and answers False.

    Times never decrease: each is the given one or the row's latest, whichever is later.
    """

    async def upsert(self, order: BatchOrder) -> BatchRow:
        """Inserts the row as validating; an existing one is returned unchanged."""
        ...

    async def get(self, tenant: str, batch_id: str) -> BatchRow | None: ...

    async def get_waiting(
        self, tenant: str, batch_id: str, at: datetime
    ) -> tuple[BatchRow, list[Waiting]] | None:
        """The same, and why it waits `at` that time as far as it was told, by model."""
        ...

    async def page(self, tenant: str, *, limit: int, after: str | None) -> tuple[list[BatchRow], bool]:
        """Newest first, and whether there are more. Raises UnknownCursor."""
        ...

    async def count_live(self, tenant: str) -> int: ...

    async def note_cancel(self, tenant: str, batch_id: str, at: datetime) -> BatchRow | None:
        """Sets `cancel_requested_at` of a live row once; whatever its status, the row as it is now."""
        ...

    async def begin(
        self,
        tenant: str,
        batch_id: str,
        *,
        total: int,
        models: list[ModelCount],
        at: datetime,
        unserved: int = 0,
        completed: int = 0,
    ) -> bool:
        """validating -> in_progress. Ingestion settled so many: `unserved` count as failed from now on."""
        ...

    async def fail_validation(
        self, tenant: str, batch_id: str, *, errors: list[ValidationError], total: int, at: datetime
    ) -> bool:
        """validating -> failed."""
        ...

    async def start_finalizing(self, tenant: str, batch_id: str, at: datetime) -> bool:
        """in_progress -> finalizing; only on the way to completed (S0-40)."""
        ...

    async def finish(self, tenant: str, batch_id: str, outcome: Outcome, at: datetime) -> BatchRow:
        """Any live status -> the outcome's, with its files, counts and usage, all or nothing.

        A row that has ended stays as it is and is returned; whether an earlier attempt won in the same status
        shows in the `storage_key` of the row's files. `models` get the outcome's counts, without them those
        the workers told last, which are cleared. A batch whose cancel was just accepted does not complete:
        its live row is returned. Raises UnknownBatch.
        """
        ...

    async def end(
        self,
        tenant: str,
        batch_id: str,
        status: BatchStatus,
        errors: list[ValidationError],
        at: datetime,
        keep_until: datetime | None = None,
    ) -> BatchRow:
        """The same without files; counts and usage are those the workers told last. Raises UnknownBatch.

        `keep_until`: what settled stays in storage until then.
        """
        ...


class ProgressTable(Protocol):
    async def record(self, rows: list[SliceProgress]) -> None:
        """Absolute numbers; older (generation, attempt) and batches that are not live are passed over."""
        ...

    async def totals(self, tenant: str, batch_id: str) -> list[ModelCount]:
        """`models` of the batch's row as it is now; empty where there is no such batch."""
        ...


class ModelsTable(Protocol):
    """Which backend serves what; not a tenant's data."""

    async def note(self, backend_url: str, names: list[str], at: datetime) -> None:
        """What the backend lists now: models it listed before and no longer does are gone."""
        ...

    async def served(self, backend_urls: list[str]) -> list[ServedModel]:
        """By name, then by URL."""
        ...


class RatesTable(Protocol):
    """Rates that were changed at run time, by model; not a tenant's data."""

    async def all(self) -> list[RateChange]: ...

    async def change(
        self,
        model: str,
        requests_per_second: float | None,
        at: datetime,
        check: Callable[[list[RateChange]], None],
    ) -> list[RateChange]:
        """Sets a model's rate, or with None removes it; all there are then. A repeat changes nothing.

        `check` sees those, and nothing happens if it raises. Changes at once come one after the other.
        """
        ...


class ModelChangesTable(Protocol):
    """Models registered, changed or taken away at run time; not a tenant's data.

    Of every change, `check` sees all there are then, and nothing happens if it raises. Changes at once come
    one after the other; a repeat changes nothing but the time.
    """

    async def all(self) -> list[ModelChange]: ...

    async def put(
        self,
        model: str,
        config: ModelConfig | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
    ) -> list[ModelChange]:
        """From now on `config`, or with None no such model; all changes there are then."""
        ...

    async def revert(self, model: str, check: Callable[[list[ModelChange]], None]) -> list[ModelChange]:
        """As if it had never been changed."""
        ...


class FleetView(Protocol):
    """Over all tenants, for metrics: nothing of it is shown to a tenant."""

    async def live(self) -> list[LiveBatch]:
        """The batches that have not ended."""
        ...

    async def unsettled(self) -> list[Unsettled]:
        """What the batches that dispatch have left, by batch and model."""
        ...

    async def lines_left(self) -> dict[str, int]:
        """Their lines without a result, by model; models without any are left out."""
        ...


class DatabaseLike(Protocol):
    @property
    def files(self) -> FilesTable: ...
    @property
    def batches(self) -> BatchesTable: ...
    @property
    def progress(self) -> ProgressTable: ...
    @property
    def models(self) -> ModelsTable: ...
    @property
    def workers(self) -> WorkersTable: ...
    @property
    def rates(self) -> RatesTable: ...
    @property
    def quotas(self) -> QuotasTable: ...
    @property
    def model_changes(self) -> ModelChangesTable: ...
    @property
    def fleet(self) -> FleetView: ...
    @property
    def uploads(self) -> UploadsTable: ...
    @property
    def claims(self) -> ClaimsTable: ...
    @property
    def chances(self) -> ChancesTable: ...
    @property
    def dead_letters(self) -> DeadLettersTable: ...
    @property
    def retention(self) -> RetentionTable: ...
    @property
    def audits(self) -> AuditsTable: ...
    @property
    def waiting(self) -> WaitingTable: ...
    @property
    def callbacks(self) -> CallbacksTable: ...
    @property
    def tenants(self) -> TenantsTable: ...
    @property
    def organizations(self) -> OrganizationsTable: ...
    @property
    def users(self) -> UsersTable: ...
    @property
    def api_keys(self) -> ApiKeysTable: ...

    async def check(self) -> None:
        """Raises DatabaseUnavailable unless the database answers a query."""
        ...

    async def close(self) -> None: ...
