"""Creates batches that rerun lines of ended batches. A retry sends the failed lines again; a resumption sends
the lines without a result.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, conflict
from batchwright.api.schemas.batch_create import parse_max_cost, parse_window
from batchwright.api.schemas.batch_rerun import RerunBody, RetryBody, parse_codes
from batchwright.api.schemas.json_body import reject_unknown
from batchwright.api.services.batches.creation import BatchCreator
from batchwright.api.services.batches.failed_lines import (
    DIGEST_BYTES,
    InputMismatch,
    copy_lines,
    failed_line_digests,
)
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter
from batchwright.api.services.files.upload import discard_object
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.contracts.errors import RESUMABLE_CODES
from batchwright.contracts.temporal_payloads.batch import BatchOrder, Caller, RerunKind, SourceBatch
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate
from batchwright.contracts.terms import BatchStatus
from batchwright.database.errors import OutcomeUnknown, ResultsGone
from batchwright.database.records import BatchRow, FileRow
from batchwright.database.tables.tenants.admissions import Admission
from batchwright.rules.backends.request_headers import currently_passed
from batchwright.rules.ids import new_file_id
from batchwright.rules.results import error_tally
from batchwright.rules.results.output_lines import ResultDamaged
from batchwright.storage.base import ObjectMissing

logger = logging.getLogger(__name__)

_Claimed = TypeVar("_Claimed", bound=BatchOrder | None)
_AT_ONCE = 4  # a retry reads the files of its batch, and writes a new input
_WAIT_SECONDS = 60.0
_FILES_PENDING = "its files are still to be written. Poll it until `x_batchwright.files_pending` is false."


class _NewBatch(NamedTuple):
    """The order of a new batch (the message that starts its workflow), and the new input file.

    `file` is the row of the input file, which the caller must insert. It is None if the new batch uses the
    input of the ended batch.
    """

    order: BatchOrder
    file: FileRow | None = None


class BatchReruns:
    """The service that retries or resumes ended batches in new batches. Each batch can be retried once and
    resumed once.

    A retry sends the failed lines again. A resumption sends the lines without a result. A repeated request
    returns the batch that the first request created.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._creator = BatchCreator(deps)
        self._builder = RerunBuilder(deps, self._creator)
        self._limiter = ExpensiveTaskLimiter(
            _AT_ONCE, _WAIT_SECONDS, work="inputs of batches are being copied"
        )

    async def retry(self, row: BatchRow, fields: Mapping[str, object], key_id: str) -> BatchRow:
        """Create a batch that sends the failed lines of an ended batch again. Return the row of the new
        batch.

        Args:
            row: row of the ended batch.
            fields: body of the request. The body can set the completion window and the maximum cost. If it
                contains error codes, only lines that failed with one of these codes are sent again.
            key_id: id of the API key with which the new batch runs.

        Raises:
            ApiError: the batch cannot be retried, a field is not valid, or a quota is exhausted.
        """
        reject_unknown(fields, RetryBody.model_fields)
        codes = parse_codes(fields)
        if not row.status.is_terminal:
            raise conflict(f"Cannot retry a batch with status '{row.status}': wait until it has ended.")
        if row.files_pending:
            raise conflict(f"Cannot retry batch '{row.order.batch_id}': {_FILES_PENDING}")
        origin = SourceBatch(batch_id=row.order.batch_id, kind=RerunKind.RETRY, codes=codes)
        return await self._rerun(row, origin, fields, key_id, partial(self._retry, row, codes))

    async def _retry(self, row: BatchRow, codes: list[str], template: BatchTemplate) -> _NewBatch:
        """Copy failed lines of an ended batch to a new input file. Return the order (the start message) of a
        new batch with this file, and the row of the file.

        Args:
            codes: copy only lines that failed with one of these error codes; empty for all failed lines.

        Raises:
            ApiError: no line failed (409), or a file of the batch is deleted (409), lost or damaged (500).
        """
        if row.error_file_id is None:
            reason = "no line of it failed" if row.output_file_id else "it has no files"
            raise conflict(f"Cannot retry batch '{row.order.batch_id}': {reason}.")
        error = await self._builder.file_of(row, row.error_file_id, "retry")
        source = await self._builder.file_of(row, row.order.input_file_id, "retry")
        async with self._builder.reading(row, error, source):
            digests = await self._failed_lines(row, error, codes)
            file = await copy_lines(row, digests, source, self._deps)
        requests = len(digests) // DIGEST_BYTES if row.order.policy.message_requests else 0
        changed = {"input_file_id": file.id, "message_requests": requests}
        return _NewBatch(await self._builder.order(row, template.model_copy(update=changed)), file)

    async def _failed_lines(self, row: BatchRow, error: FileRow, codes: list[str]) -> bytes:
        """Return digests that identify the failed lines in an error file: 16 bytes for each line, joined.

        If `codes` is not empty, only lines that failed with one of these error codes are included.

        Raises:
            ApiError: no line failed with one of the codes (409).
        """
        digests = await failed_line_digests(error, codes, self._deps)
        if codes and not digests:
            known = ", ".join(sorted({each.code for each in row.errors_summary} - {error_tally.OTHER}))
            raise conflict(
                f"Cannot retry batch '{row.order.batch_id}': no line of it failed with {' or '.join(codes)}. "
                f"Its lines failed with: {known}."
            )
        return digests

    async def resume(self, row: BatchRow, fields: Mapping[str, object], key_id: str) -> BatchRow:
        """Create a batch that resumes an ended batch: it sends the lines that have no result yet. Return the
        new batch's row.

        The new batch has the same input file, and takes over the results of the ended batch.

        Args:
            row: row of the ended batch.
            fields: body of the request. It can set the completion window and the maximum cost.
            key_id: id of the API key with which the new batch runs.

        Raises:
            ApiError: the batch cannot be resumed, a field is not valid, or a quota is exhausted.
        """
        reject_unknown(fields, RerunBody.model_fields)
        origin = SourceBatch(batch_id=row.order.batch_id, kind=RerunKind.RESUME)
        return await self._rerun(row, origin, fields, key_id, partial(self._resumption, row))

    async def _resumption(self, row: BatchRow, template: BatchTemplate) -> _NewBatch:
        """Build the order (the start message) of a batch that resumes an ended batch. The new batch sends the
        lines that have no result. If the input is in a bucket, and the ended batch has not copied it, the new
        batch copies the input.

        Raises:
            ApiError: the batch cannot be resumed, or its results or files are no longer kept (409).
        """
        if refused := resume_refusal(row):
            raise conflict(f"Cannot resume a batch with status '{row.status}': {refused}")
        changed: dict[str, object] = {"message_requests": row.order.policy.message_requests}
        input_id, location = row.order.input_file_id, row.order.input_location
        unread = location is not None and row.in_progress_at is None
        if unread and await self._deps.database.files.get(row.order.tenant, input_id) is None:
            changed |= {"input_file_id": new_file_id(), "input_location": location}
        else:
            await self._builder.file_of(row, input_id, "resume")
        for file_id in (row.output_file_id, row.error_file_id):
            if file_id is not None:
                await self._builder.file_of(row, file_id, "resume")
        kept_until = row.results_kept_until
        if kept_until is not None and kept_until <= self._deps.clock():
            raise _results_gone(row, f"were kept until {kept_until:%Y-%m-%d %H:%M} UTC")
        return _NewBatch(await self._builder.order(row, template.model_copy(update=changed)))

    async def _rerun(
        self,
        row: BatchRow,
        origin: SourceBatch,
        fields: Mapping[str, object],
        key_id: str,
        build: Callable[[BatchTemplate], Awaitable[_NewBatch]],
    ) -> BatchRow:
        table, tenant = self._deps.database.reruns, row.order.tenant
        order = await table.find(tenant, origin)
        if order is None:
            parameters = self._builder.parameters(row, fields, key_id)
            copies = origin.kind is RerunKind.RETRY  # a resumed batch has the same input file
            slot = self._limiter.slot(tenant, row.order.batch_id) if copies else nullcontext(False)
            async with slot as waited:
                order = await table.find(tenant, origin) if waited else None
                if order is None:
                    order = await self._claimed_order(row, origin, parameters, build)
        claimed = order.origin
        if claimed is not None and claimed.codes != origin.codes:
            lines = f"with the codes {', '.join(claimed.codes)}" if claimed.codes else "of all codes"
            raise conflict(
                f"Cannot retry batch '{row.order.batch_id}' again: '{order.batch_id}' retries its lines "
                f"{lines}. Repeat the call with the same codes to get that batch."
            )
        try:
            return await self._creator.start_unless_there(order)
        except ResultsGone:
            raise _results_gone(row, "are no longer kept") from None

    async def _claimed_order(
        self,
        row: BatchRow,
        origin: SourceBatch,
        parameters: BatchTemplate,
        build: Callable[[BatchTemplate], Awaitable[_NewBatch]],
    ) -> BatchOrder:
        """Build a new batch that reruns lines of an ended batch, and claim these lines for the new batch.
        Return the new batch's order: the message that starts its workflow.

        A claim is a stored record that prevents a second rerun of the same lines. If these lines are already
        claimed for another new batch, return the order of that batch.

        Args:
            row: row of the ended batch.
            origin: id of the ended batch, kind of the rerun (retry or resumption), and error codes to retry.
            parameters: parameters of the new batch.
            build: function that builds the new batch from `parameters`.
        """
        table, tenant = self._deps.database.reruns, row.order.tenant
        try:
            await QuotaChecks(self._deps, tenant).check_live_batches()
        except ApiError:
            if claimed := await table.find(tenant, origin):  # by another request, whose batch already counts
                return claimed
            raise
        new_order, file = await build(parameters)
        new_order = new_order.model_copy(update={"origin": origin})

        async def claim(admissions: Sequence[Admission]) -> BatchOrder:
            return await table.claim(new_order, origin, file, admissions=admissions)

        try:
            return await self._builder.admit_and_claim(new_order, file, claim)
        except ResultsGone:
            raise _results_gone(row, "are no longer kept") from None


def _results_gone(row: BatchRow, what: str) -> ApiError:
    return conflict(
        f"Cannot resume batch '{row.order.batch_id}': its results {what}. "
        f"Create a new batch of file '{row.order.input_file_id}'."
    )


def resume_refusal(row: BatchRow) -> str:
    """Return the reason why an ended batch cannot be resumed, as a message for the client; empty if the batch
    can be resumed.
    """
    if row.files_pending:
        return _FILES_PENDING
    if row.status is BatchStatus.COMPLETED:
        return "every line has its result. `retry` sends those that failed again."
    if row.status is BatchStatus.FAILED and all(error.code not in RESUMABLE_CODES for error in row.errors):
        return "its input is not valid. Correct it, upload it and create a new batch."
    has_files = row.output_file_id is not None or row.error_file_id is not None
    if row.completed and not has_files and row.results_kept_until is None:
        return "it ended without files, and its results were not kept. Create a new batch of the same file."
    return ""


class RerunBuilder:
    """A builder of a new batch that sends lines of an ended batch again.

    The builder also stores a claim: a record that these lines now belong to the new batch. The claim prevents
    a second batch from sending the same lines.
    """

    def __init__(self, deps: ApiDependencies, creator: BatchCreator) -> None:
        self._deps, self._creator = deps, creator

    def parameters(self, row: BatchRow, fields: Mapping[str, object], key_id: str) -> BatchTemplate:
        """Return the parameters of the new batch, copied from the ended batch.

        Args:
            fields: body of the request. Its `completion_window` and `max_cost` replace the values of the
                ended batch.
            key_id: id of the API key with which the new batch runs; empty if an operator sent the request.

        Raises:
            ApiError: the completion window or the maximum cost is not valid.
        """
        order = row.order
        requested = fields.get("completion_window")
        text = order.completion_window if requested is None else requested
        settings = self._deps.settings
        window, length = parse_window(text, settings)
        max_cost = parse_max_cost(fields.get("max_cost"), "max_cost")
        headers = currently_passed(order.policy.caller.headers, settings.passed_headers)
        return BatchTemplate(
            input_file_id=order.input_file_id,
            endpoint=order.endpoint,
            completion_window=window,
            window_seconds=int(length.total_seconds()),
            metadata=order.metadata,
            output_expires_after_seconds=order.output_expires_after_seconds,
            deduplicate=order.policy.deduplicate,
            max_cost=order.max_cost if max_cost is None else max_cost,
            output_location=order.output_location,
            caller=Caller(key_id=key_id, headers=headers),
        )

    async def order(self, row: BatchRow, template: BatchTemplate) -> BatchOrder:
        """Build the order of the new batch: the message that starts its workflow.

        The new batch has the priority of the ended batch. If the tenant may now only use lower priorities,
        the new batch has the highest priority that the tenant may use.
        """
        own = await self._deps.database.quotas.get(row.order.tenant)
        priority = min(row.order.priority, own.highest_priority)
        template = template.model_copy(update={"priority": priority})
        return await self._creator.build_order(template, row.order.tenant)

    async def file_of(self, row: BatchRow, file_id: str, verb: str) -> FileRow:
        """Return the database row of a file that belongs to the batch.

        Args:
            verb: name of the operation, for the error message.

        Raises:
            ApiError: the file was deleted or has expired.
        """
        file = await self._deps.database.files.get(row.order.tenant, file_id)
        if file is None:
            raise conflict(
                f"Cannot {verb} batch '{row.order.batch_id}': its file '{file_id}' was deleted or expired."
            )
        return file

    @asynccontextmanager
    async def reading(self, row: BatchRow, *files: FileRow) -> AsyncGenerator[None]:
        """Context manager in which files of an ended batch are read. It raises ApiError if a file cannot be
        read.

        Args:
            row: row of the ended batch.
            files: the files that the `with` block reads.

        Raises:
            ApiError: a file was deleted in the meantime (409), or a file is lost or damaged (500).
        """
        try:
            yield
        except (ObjectMissing, InputMismatch, ResultDamaged) as problem:
            for file in files:
                await self.file_of(row, file.id, "retry")
            logger.error("files of a batch cannot be read", extra={"error": str(problem)})
            message = f"The files of batch '{row.order.batch_id}' are lost or damaged."
            raise ApiError(500, message, code="content_missing") from problem

    async def admit_and_claim(
        self,
        new_order: BatchOrder,
        file: FileRow | None,
        claim: Callable[[Sequence[Admission]], Awaitable[_Claimed]],
    ) -> _Claimed:
        """Call `claim`, which stores a new batch that reruns lines, and return the result of `claim`.

        In one transaction, `claim` counts the new batch and its file towards the tenant's quotas, inserts the
        row of the file, and claims the lines. A claim is a stored record that prevents a second rerun of the
        same lines. If the lines cannot be claimed, `claim` stores nothing, and this method deletes the stored
        object of the new file.

        Args:
            new_order: order of the new batch.
            file: the new input file, whose row is not inserted yet; None if there is no new file.
            claim: function that gets the admissions (the amounts to count towards the quotas). It returns
                `new_order` if it has stored the new batch. Otherwise, it returns the order of the batch that
                has claimed the lines before, or None.

        Raises:
            ApiError: the tenant has too many live batches, or no storage left for the file.
            ResultsGone, UnknownBatch: the ended batch was deleted meanwhile.
        """
        checks = QuotaChecks(self._deps, new_order.tenant)
        try:
            async with checks.quota_errors():
                order = await claim(await checks.batch_admissions(new_order.batch_id, file))
        except OutcomeUnknown:  # claim and row may exist; if not, retention deletes the object
            raise
        except Exception:
            await self._discard(file)
            raise
        if order is None or order.batch_id != new_order.batch_id:
            await self._discard(file)
        return order

    async def _discard(self, file: FileRow | None) -> None:
        """Delete the stored object of a new file that has no row yet. Do nothing if `file` is None."""
        if file is not None:
            await discard_object(file.storage_key, self._deps)
