"""/v1/messages/batches: Anthropic's message batches. They are batches with the endpoint `/v1/messages`.

`msgbatch_X` is the id of the batch `batch_X`. You can use the same batch with Anthropic's and OpenAI's API.
"""

import asyncio
import logging
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from batchwright.api.audit_log.recorder import AuditLog, in_any_state, is_live
from batchwright.api.audit_log.targets import MessageBatchTarget
from batchwright.api.auth.caller import caller_of, key_id_of, tenant_of
from batchwright.api.batch_rows import BatchRows
from batchwright.api.client_limits.held_downloads import CountedResponse, HeldDownloads
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, invalid_value
from batchwright.api.middleware.head_method import is_head
from batchwright.api.openapi import ResponseSpecs, limit_schema, pattern_schema
from batchwright.api.routes.anthropic import request_stream
from batchwright.api.routes.anthropic.error_format import message_error_responses
from batchwright.api.routes.anthropic.message_batch_objects import (
    RESULTS_LIFETIME,
    MessageBatchBody,
    has_ended,
    message_batch,
    result_file_ids,
    results_available,
)
from batchwright.api.routes.anthropic.message_batch_results import results
from batchwright.api.routes.anthropic.request_stream import RequestStream, limits_of
from batchwright.api.schemas.batch_create import BatchCreate
from batchwright.api.schemas.json_body import json_body_spec
from batchwright.api.schemas.openai_objects import batch_object, json_response
from batchwright.api.services.batches.control import BatchControl
from batchwright.api.services.batches.creation import BatchCreator, CreatedBatch
from batchwright.api.services.batches.deletion import BatchDeletion
from batchwright.api.services.compressed_response import accepted_compression, encoded, encoding_headers
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter
from batchwright.api.services.files.streamed_body import stream_body
from batchwright.api.services.files.upload import FileUpload, discard_object, store_form, write_form
from batchwright.api.services.idempotency import (
    IdempotencyKeys,
    idempotency_key_of,
    idempotency_key_parameter,
    stored_result,
)
from batchwright.api.services.live_results.result_stream import JSONL
from batchwright.contracts.api_objects.anthropic import (
    ANTHROPIC_VERSION_HEADER,
    DEFAULT_ANTHROPIC_VERSION,
    DeletedMessageBatch,
    MessageBatchObject,
    MessageBatchPage,
    RelaxedMessageBatchObject,
    RelaxedMessageBatchPage,
)
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch_schedules import BatchTemplate
from batchwright.contracts.terms import Endpoint, Profile
from batchwright.database.errors import DatabaseError, UnknownCursor
from batchwright.database.records import BatchRow, FileRow, IdempotencyClaim
from batchwright.rules.batch_filters import BatchFilters
from batchwright.rules.ids import batch_id_of, message_batch_id
from batchwright.rules.pagination import page_limit
from batchwright.storage.base import ObjectMissing

logger = logging.getLogger(__name__)

_PATH = "/v1/messages/batches"
_WINDOW, _WINDOW_TEXT = timedelta(hours=24), "24h"
MAX_REPEATS = 8  # number of repeated bodies that a process reads at the same time
_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CURSOR = "a message batch id; not together with the other cursor"
_LINES: ResponseSpecs = {
    200: {"description": "The results, one per line", "content": {JSONL: {"schema": {"type": "string"}}}}
}


async def _check_version(
    version: Annotated[
        str,
        Header(alias=ANTHROPIC_VERSION_HEADER, description=f"such as {DEFAULT_ANTHROPIC_VERSION}"),
        pattern_schema(f"^{_VERSION.pattern}$"),
    ],
    beta: Annotated[str | None, Query(description="sent by the beta clients, and ignored")] = None,
) -> None:
    """Check the version header that Anthropic's API requires.

    Raises:
        ApiError: the value does not have the form YYYY-MM-DD (400).
    """
    if _VERSION.fullmatch(version) is None:
        shown, expected = version[:64], DEFAULT_ANTHROPIC_VERSION
        message = f"{ANTHROPIC_VERSION_HEADER}: '{shown}' is not a version such as {expected}."
        raise invalid_value(ANTHROPIC_VERSION_HEADER, message)


class MessageBatchRoutes:
    def __init__(self, deps: ApiDependencies, downloads: HeldDownloads) -> None:
        self._deps, self._settings, self._downloads = deps, deps.settings, downloads
        self._rows, self._files = BatchRows(deps), deps.database.files
        self._batch_list, self._limits = deps.database.batch_list, limits_of(deps.settings)
        self._creator, self._control = BatchCreator(deps), BatchControl(deps)
        self._deletion, self._audit_log = BatchDeletion(deps), AuditLog(deps)
        self._repeats = ExpensiveTaskLimiter(MAX_REPEATS, 60.0, "repeated bodies are being read")

    def router(self) -> APIRouter:
        router = APIRouter(prefix=_PATH, tags=["Message batches"], dependencies=[Depends(_check_version)])
        one, missing = "/{message_batch_id}", message_error_responses(404)
        relaxed = self._settings.profile is Profile.RELAXED
        shown = RelaxedMessageBatchObject if relaxed else MessageBatchObject
        page = RelaxedMessageBatchPage if relaxed else MessageBatchPage
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=shown,
            openapi_extra=json_body_spec(MessageBatchBody),
            dependencies=[Depends(idempotency_key_parameter)],
        )
        router.add_api_route("", self.list, response_model=page, responses=missing)
        router.add_api_route(one, self.get, response_model=shown, responses=missing)
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedMessageBatch,
            responses=message_error_responses(404, 409),
            dependencies=self._audit_log.of_tenant(
                AuditAction.BATCH_DELETE, MessageBatchTarget, ends=in_any_state
            ),
        )
        cancel = self._audit_log.of_tenant(AuditAction.BATCH_CANCEL, MessageBatchTarget, ends=is_live)
        router.add_api_route(
            f"{one}/cancel",
            self.cancel,
            methods=["POST"],
            response_model=shown,
            responses=missing,
            dependencies=cancel,
        )
        router.add_api_route(
            f"{one}/results", self.results, response_class=Response, responses=_LINES | missing
        )
        return router

    async def create(self, request: Request) -> Response:
        """Create a message batch. If the `params` of a request are not valid, only this request fails."""
        tenant, key, limits = tenant_of(request, self._settings), idempotency_key_of(request), self._limits
        max_bytes = limits.max_bytes + limits.max_requests * request_stream.MAX_ADDED_BYTES
        upload = FileUpload(tenant, self._settings, max_bytes=max_bytes)
        if key is not None:  # first, because a repeated request needs no room in a quota
            await upload.read_quota(self._deps)  # before the key, which is found if this counts its file
            earlier = await IdempotencyKeys(self._deps, tenant, "batches").find_claim(key)
            if earlier is not None:
                return await self._repeat(request, earlier)
        caller, requests = caller_of(request, self._settings), RequestStream(limits)
        write = store_form if key is None else write_form  # the key is stored together with the file's row
        async with stream_body(request, limits.max_bytes, request_stream.BODY) as body:
            with self._deps.held_bytes.counted(tenant) as count:
                file = await write(upload, requests.form(body, count), self._deps)
        version = request.headers[ANTHROPIC_VERSION_HEADER]
        headers = {**caller.headers, ANTHROPIC_VERSION_HEADER: version}
        template = BatchTemplate(
            input_file_id=file.id,
            endpoint=Endpoint.MESSAGES,
            completion_window=_WINDOW_TEXT,
            window_seconds=int(_WINDOW.total_seconds()),
            output_expires_after_seconds=int(RESULTS_LIFETIME.total_seconds()),
            deduplicate=self._settings.deduplicate,
            caller=caller.model_copy(update={"headers": headers}),
            message_requests=requests.count,
        )
        creation, digest = BatchCreate(template), requests.fingerprint(version)
        try:
            if key is None:
                created = await self._creator.create(creation, tenant)
            else:
                with _conflict_as_invalid_request():
                    created = await self._creator.create_once(creation, tenant, key, digest, file)
        except BaseException as error:  # also if the client disconnects
            # With a key, a repeated request may still start the batch of this one, unless it was refused.
            if key is None:
                await asyncio.shield(self._delete_input(tenant, file.id))
            elif isinstance(error, ApiError):
                await discard_object(file.storage_key, self._deps)
            raise
        if created.row.order.input_file_id != file.id:  # the batch of an earlier request with this key
            await discard_object(file.storage_key, self._deps)
        return self._created(request, created)

    async def _repeat(self, request: Request, earlier: IdempotencyClaim) -> Response:
        """Return the batch that an earlier request with the same idempotency key has created.

        `earlier` contains a digest of the earlier request. The body of the new request is read to compare
        the digests of both requests, and is not stored.

        Raises:
            ApiError: the earlier request had different content, or its batch was deleted (400). This process
                is already reading the bodies of too many repeated requests (429).
        """
        limits, version = self._limits, request.headers[ANTHROPIC_VERSION_HEADER]
        requests = RequestStream(limits)
        slot = self._repeats.slot(earlier.tenant, earlier.key)
        async with stream_body(request, limits.max_bytes, request_stream.BODY) as body, slot:
            async for _ in requests.form(body):
                pass
        with _conflict_as_invalid_request():
            stored = stored_result(earlier, requests.fingerprint(version))
            return self._created(request, await self._creator.repeat(stored))

    def _created(self, request: Request, created: CreatedBatch) -> Response:
        return json_response(self._shown(request, created.row, {}, batch_object(created.row)))

    async def list(
        self,
        request: Request,
        limit: Annotated[str | None, Query(), limit_schema(20, 1000)] = None,
        after_id: Annotated[str | None, Query(description=_CURSOR)] = None,
        before_id: Annotated[str | None, Query(description=_CURSOR)] = None,
    ) -> Response:
        """List message batches, newest first."""
        tenant, page_size = tenant_of(request, self._settings), page_limit(limit, default=20, maximum=1000)
        if after_id is not None and before_id is not None:
            raise invalid_value("before_id", "after_id, before_id: send only one of them.")
        after, before = (id and _batch_id(id) for id in (after_id, before_id))
        try:
            if before is None:
                filters = BatchFilters(endpoint=Endpoint.MESSAGES)
                rows, more = await self._batch_list.page(
                    tenant, limit=page_size, after=after, filters=filters
                )
            else:
                rows, more = await self._batch_list.page_before(
                    tenant, before, limit=page_size, endpoint=Endpoint.MESSAGES
                )
        except UnknownCursor as error:
            raise _not_found(message_batch_id(error.id)) from None
        files = await self._result_files(tenant, rows)
        data = [self._shown(request, row, files, batch_object(row)) for row in rows]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        # A page of the plain type would leave out the fields of the relaxed objects.
        page = RelaxedMessageBatchPage if self._settings.profile is Profile.RELAXED else MessageBatchPage
        fields = {"data": data, "has_more": more, "first_id": first, "last_id": last}
        return json_response(page.model_validate(fields))

    async def get(self, request: Request, message_batch_id: str) -> Response:
        """Retrieve a message batch."""
        row = await self._row(request, message_batch_id)
        return await self._response(request, row)

    async def cancel(self, request: Request, message_batch_id: str) -> Response:
        """Cancel a message batch that has not ended. The results that exist by then are kept."""
        row = await self._row(request, message_batch_id)
        if has_ended(row):
            raise ApiError(400, f"Message batch '{message_batch_id}' has ended, so it cannot be canceled.")
        with _conflict_as_invalid_request():
            await self._control.cancel(row.order.tenant, row.order.batch_id)
        return await self._response(request, await self._row(request, message_batch_id))

    async def delete(self, request: Request, message_batch_id: str) -> Response:
        """Delete a message batch that has ended, with its requests and results."""
        tenant, batch_id = tenant_of(request, self._settings), _batch_id(message_batch_id)
        row = await self._row(request, message_batch_id)
        with _conflict_as_invalid_request():
            await self._deletion.delete(tenant, batch_id, key_id_of(request), keep_files=False)
        if row.order.policy.message_requests:
            await self._delete_input(tenant, row.order.input_file_id)
        return json_response(DeletedMessageBatch(id=message_batch_id))

    async def results(self, request: Request, message_batch_id: str) -> Response:
        """Retrieve the results of a message batch that has ended. The results are in no particular order."""
        row = await self._row(request, message_batch_id)
        if not has_ended(row):
            message = (
                f"Message batch '{message_batch_id}' has no results yet. Retrieve it until its "
                "processing_status is 'ended'."
            )
            raise ApiError(400, message)
        files = await self._result_files(row.order.tenant, [row])
        if not results_available(row, files, self._deps.clock()):
            raise _results_gone(message_batch_id)
        if is_head(request):
            return Response(None, media_type=JSONL)
        found = [files[id] for id in result_file_ids(row)]
        pieces = results(row, found, self._deps.storage)
        with self._downloads.begin(row.order.tenant, sum(file.bytes for file in found)) as counted:
            try:
                first = await anext(pieces, b"")  # while an error response is still possible
            except ObjectMissing:
                raise _results_gone(message_batch_id) from None
            compression = accepted_compression(request)
            body, headers = encoded(first, pieces, compression), encoding_headers(compression)
            shown = StreamingResponse(body, headers=headers, media_type=JSONL)
            return CountedResponse(shown, counted.pop_all())

    async def _response(self, request: Request, row: BatchRow) -> Response:
        files = await self._result_files(row.order.tenant, [row])
        if self._settings.profile is Profile.STRICT:
            return json_response(self._shown(request, row, files, batch_object(row)))
        details = await self._control.get(row.order.tenant, row.order.batch_id)
        return json_response(self._shown(request, row, files, details))

    def _shown(
        self, request: Request, row: BatchRow, files: Mapping[str, FileRow], details: BatchObject
    ) -> MessageBatchObject:
        """Return the batch in Anthropic's format.

        Args:
            files: files of the batch's results, by id.
            details: the batch object that OpenAI's routes return for this batch.
        """
        profile, id = self._settings.profile, message_batch_id(row.order.batch_id)
        url = f"{_base_url(request)}{_PATH}/{id}/results"
        shown = message_batch(row, files, self._deps.clock(), profile, url)
        if profile is Profile.STRICT:
            return shown
        return RelaxedMessageBatchObject(**dict(shown), x_batchwright=details)

    async def _result_files(self, tenant: str, rows: Iterable[BatchRow]) -> Mapping[str, FileRow]:
        """Return the result files of these batches, by file id. Files that no longer exist are left out."""
        ids = [id for row in rows for id in result_file_ids(row)]
        return await self._files.get_all(tenant, ids) if ids else {}

    async def _row(self, request: Request, id: str) -> BatchRow:
        """Return the database row of a message batch.

        Raises:
            ApiError: the tenant has no such batch (404).
        """
        tenant, batch_id = tenant_of(request, self._settings), _batch_id(id)
        row = await self._rows.find(tenant, batch_id)
        if row is None or row.order.endpoint is not Endpoint.MESSAGES:
            raise _not_found(id)
        return row

    async def _delete_input(self, tenant: str, file_id: str) -> None:
        """Delete the input file of a message batch. Clients do not see the file, so they cannot delete it.

        If another batch has the same input file, such as a batch that resumes or retries the message batch,
        the file is kept. If the deletion fails, the file is deleted later, when it expires.
        """
        try:
            if await self._files.is_input(tenant, file_id):
                return
            file = await self._files.delete(tenant, file_id)
        except DatabaseError as error:  # also if another batch still reads the file
            logger.warning("input of a message batch not deleted", extra={"error": str(error)})
            return
        if file is not None:
            await discard_object(file.storage_key, self._deps)


@contextmanager
def _conflict_as_invalid_request() -> Generator[None]:
    """Context manager that turns a 409 error into a 400 error if a retry of the request cannot succeed.

    A 409 error with the header Retry-After is raised unchanged, because a later retry may succeed.
    """
    try:
        yield
    except ApiError as error:
        if error.status == 409 and "Retry-After" not in error.headers:
            raise ApiError(400, error.message) from None
        raise


def _base_url(request: Request) -> str:
    """Return the scheme and host of the URL that the client has used, such as `https://api.example.com`.

    A proxy that terminates TLS passes the request on with `http`, and sends `https` in the header
    X-Forwarded-Proto. The value `https` is trusted even from unknown proxies. If it were ignored, the
    response could contain an `http` URL, and the client would send its key to this URL unencrypted.
    """
    url = request.base_url
    if request.headers.get("x-forwarded-proto", "").split(",")[0].strip().lower() == "https":
        url = url.replace(scheme="https")
    return str(url).rstrip("/")


def _batch_id(id: str) -> str:
    if (found := batch_id_of(id)) is None:
        raise _not_found(id)
    return found


def _not_found(id: str) -> ApiError:
    return ApiError(404, f"No message batch found with id '{id}'.")


def _results_gone(id: str) -> ApiError:
    return ApiError(404, f"The results of message batch '{id}' are no longer available.")
