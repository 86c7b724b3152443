"""/v1/uploads: create an upload for a large file, add the file's parts, and complete or cancel the upload."""

import logging

from fastapi import APIRouter, Depends, Request, Response

from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.audit_log.targets import UploadTarget
from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, upload_not_found
from batchwright.api.openapi import error_responses
from batchwright.api.schemas.json_body import read_json_object
from batchwright.api.schemas.openai_objects import json_response, part_object, upload_object
from batchwright.api.schemas.upload_create import (
    COMPLETE_BODY,
    CREATE_BODY,
    MAX_PARTS,
    PART_BODY,
    UploadCompletion,
    parse_completion,
    parse_upload_create,
)
from batchwright.api.services.expensive_task_limiter import ExpensiveTaskLimiter
from batchwright.api.services.files.streamed_body import stream_body
from batchwright.api.services.files.upload_assembly import MAX_PART_BYTES, assemble, store_part
from batchwright.api.services.idempotency import (
    IdempotencyKeys,
    fingerprint,
    idempotency_key_of,
    idempotency_key_parameter,
)
from batchwright.api.services.quota_checks import QuotaChecks
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.openai import PartObject, UploadObject
from batchwright.database.errors import UnknownUpload, UploadClosed, UploadFull
from batchwright.database.records import UploadRow
from batchwright.rules.ids import is_upload_id
from batchwright.rules.stored_objects import object_keys
from batchwright.storage.base import ObjectMissing, StorageError

logger = logging.getLogger(__name__)
_ASSEMBLIES = 4  # number of uploads that a process assembles at the same time
_ASSEMBLY_WAIT_SECONDS = 60.0


class UploadRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._uploads = deps.database.uploads
        self._limiter = ExpensiveTaskLimiter(_ASSEMBLIES, _ASSEMBLY_WAIT_SECONDS)
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/uploads", tags=["Uploads"])
        one = "/{upload_id}"
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=UploadObject,
            openapi_extra=CREATE_BODY,
            responses=error_responses(409),
            dependencies=[Depends(idempotency_key_parameter)],
        )
        router.add_api_route(
            one + "/parts",
            self.add_part,
            methods=["POST"],
            response_model=PartObject,
            openapi_extra=PART_BODY,
            responses=error_responses(404),
        )
        router.add_api_route(
            one + "/complete",
            self.complete,
            methods=["POST"],
            response_model=UploadObject,
            openapi_extra=COMPLETE_BODY,
            responses=error_responses(404),
        )
        router.add_api_route(
            one + "/cancel",
            self.cancel,
            methods=["POST"],
            response_model=UploadObject,
            responses=error_responses(404),
            dependencies=self._audit_log.of_tenant(
                AuditAction.UPLOAD_CANCEL, UploadTarget, ends=lambda upload: upload["status"] == "pending"
            ),
        )
        return router

    async def create(self, request: Request) -> Response:
        """Create an upload for a file of at most 8 GiB, which you send in parts.

        All parts must arrive within an hour.
        """
        tenant, key = tenant_of(request, self._deps.settings), idempotency_key_of(request)
        fields = await read_json_object(request)
        row = parse_upload_create(fields, tenant, self._deps.clock(), self._deps.settings)
        if key is None:
            checks = QuotaChecks(self._deps, tenant)
            async with checks.reserve(row.id, row.bytes, await checks.storage_quota()):
                await self._uploads.insert(row)
        else:
            row = await self._create_once(row, key, fingerprint(fields))
        return json_response(upload_object(row, "pending", None))

    async def _create_once(self, row: UploadRow, key: str, fingerprint: str) -> UploadRow:
        """Create the upload `row` with its idempotency key, and return the row.

        If an earlier request with the same key has created an upload, return the first version of that
        upload's row. Later changes of that upload are not included.

        Args:
            row: database row of the new upload.
            key: the idempotency key.
            fingerprint: digest of the request, which is stored with the key.

        Raises:
            ApiError: the key was used with another request, so the stored digest is different (409). Or the
                storage quota is exhausted.
        """
        keys = IdempotencyKeys(self._deps, row.tenant, "uploads")
        stored = await keys.find(key, fingerprint)
        if stored is None:
            checks = QuotaChecks(self._deps, row.tenant)
            admission = checks.storage_admission(row.id, row.bytes, await checks.storage_quota())
            admissions = [admission] if admission else []
            async with checks.quota_errors():
                stored = await keys.claim(key, fingerprint, row.model_dump_json(), row, admissions=admissions)
        return row if stored is None else UploadRow.model_validate_json(stored)

    async def add_part(self, request: Request, upload_id: str) -> Response:
        """Add a part of at most 64 MiB. Parts may be sent in parallel and in any order."""
        deps = self._deps
        async with stream_body(request, MAX_PART_BYTES, "data") as body:
            row = await self._row(request, upload_id)
            status = row.status_at(deps.clock())
            if status != "pending":
                raise _not_pending(row.id, status)
            try:
                part = await store_part(row, request.headers.get("content-type", ""), body, deps)
            except UnknownUpload:
                raise upload_not_found(upload_id) from None
            except UploadClosed as error:
                raise _not_pending(upload_id, error.status) from None
            except UploadFull:
                max_bytes = deps.settings.max_upload_bytes
                message = f"The upload is full: at most {MAX_PARTS} parts of together {max_bytes} bytes."
                raise ApiError(400, message, code="upload_full", param="data") from None
        return json_response(part_object(part))

    async def complete(self, request: Request, upload_id: str) -> Response:
        """Assemble the file from the parts, in the order of the request.

        A repeated call with the same parts changes nothing.
        """
        row = await self._row(request, upload_id)
        completion = parse_completion(await read_json_object(request))
        status = row.status_at(self._deps.clock())
        if status == "pending":
            row = await self._assemble_once(row, completion)
        elif status != "completed":
            raise _not_pending(upload_id, status)
        if row.completion != completion.digest:
            raise _not_pending(upload_id, row.status)
        return await self._upload_response(row)

    async def cancel(self, request: Request, upload_id: str) -> Response:
        """Cancel the upload and delete its parts. A repeated call changes nothing."""
        row = await self._row(request, upload_id)
        now = self._deps.clock()
        row = await self._uploads.cancel(row.tenant, row.id, now) or row
        if row.status_at(now) != "cancelled":
            raise _not_pending(upload_id, row.status_at(now))
        await self._discard_parts(row)
        return await self._upload_response(row)

    async def _assemble_once(self, row: UploadRow, completion: UploadCompletion) -> UploadRow:
        """Assemble the file of an upload that has not ended. Return the upload's current row.

        If the upload has already ended, nothing is assembled. Another request may have cancelled the upload,
        or completed it with other parts. The caller must therefore check the returned row.

        Raises:
            ApiError: the parts do not match the request, or a part is lost. If too many uploads are being
                assembled for too long, the error has status 429.
        """
        async with self._limiter.slot(row.tenant, row.id) as waited:
            current = await self._uploads.get(row.tenant, row.id) if waited else row
            if current is None or current.status != "pending":
                return current or row
            try:
                assembled = await assemble(current, completion, self._deps)
            except (ApiError, ObjectMissing) as error:
                assembled = await self._row_if_ended(current, error)
            await self._discard_parts(assembled)
            return assembled

    async def _row_if_ended(self, row: UploadRow, error: ApiError | ObjectMissing) -> UploadRow:
        """Return the upload's current row if the upload has ended. Otherwise raise an error.

        The file could not be assembled. If the upload was completed or cancelled meanwhile, or if it has
        expired, this failure is ignored.

        Args:
            row: row of the upload before the failure.
            error: the failure.

        Raises:
            ApiError: the upload has not ended. If `error` is an ApiError, it is raised unchanged. If `error`
                is an ObjectMissing, the status is 500.
        """
        current = await self._uploads.get(row.tenant, row.id)
        if current is not None and current.status != "pending":
            return current
        if isinstance(error, ApiError):
            raise error
        logger.error("object of an upload part is missing", extra={"upload_id": row.id, "error": str(error)})
        raise ApiError(500, "A part of the upload is lost.", code="content_missing")

    async def _discard_parts(self, row: UploadRow) -> None:
        """Delete the stored objects of all parts of an upload.

        If the storage is unavailable, the retention activity deletes these objects later. This activity
        deletes data that is no longer needed.
        """
        try:
            await self._deps.storage.delete_prefix(object_keys.parts_root(row.tenant, row.id))
        except StorageError as error:
            logger.warning("upload parts were not deleted", extra={"upload_id": row.id, "error": str(error)})

    async def _upload_response(self, row: UploadRow) -> Response:
        files = self._deps.database.files
        file = None if row.file_id is None else await files.get(row.tenant, row.file_id)
        return json_response(upload_object(row, row.status_at(self._deps.clock()), file))

    async def _row(self, request: Request, upload_id: str) -> UploadRow:
        tenant = tenant_of(request, self._deps.settings)
        row = await self._uploads.get(tenant, upload_id) if is_upload_id(upload_id) else None
        if row is None:
            raise upload_not_found(upload_id)
        return row


def _not_pending(upload_id: str, status: str) -> ApiError:
    message = f"Upload '{upload_id}' cannot be changed: its status is '{status}'."
    return ApiError(400, message, code="upload_not_pending")
