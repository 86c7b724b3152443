"""/v1/files: upload, list, download and delete files."""

import asyncio
import logging
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from batchwright.api.audit_log.recorder import AuditLog, in_any_state
from batchwright.api.audit_log.targets import FileTarget
from batchwright.api.auth.caller import tenant_of
from batchwright.api.client_limits.held_downloads import CountedResponse, HeldDownloads
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, conflict, file_not_found
from batchwright.api.middleware.head_method import is_head
from batchwright.api.openapi import FILE_RESPONSES, enum_schema, error_responses, limit_schema
from batchwright.api.schemas.file_create import FILE_BODY, SCOPE_OBSERVER, file_size_limit
from batchwright.api.schemas.openai_objects import file_object, file_page, json_response
from batchwright.api.services.files.download import conditional_headers, file_response
from batchwright.api.services.files.streamed_body import stream_body
from batchwright.api.services.files.upload import FileUpload, discard_object, store_file
from batchwright.api.services.idempotency import idempotency_key_of, idempotency_key_parameter
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.openai import DeletedFile, FileObject, FilePage
from batchwright.database.errors import FileInUse, UnknownCursor
from batchwright.database.records import FileRow, Purpose
from batchwright.rules.ids import is_file_id
from batchwright.rules.pagination import is_ascending, page_limit
from batchwright.storage.base import ObjectMissing

logger = logging.getLogger(__name__)

_MAX_INLINE_OBJECTS = 500  # larger lists are built in a thread, to not block the event loop


class FileRoutes:
    def __init__(self, deps: ApiDependencies, downloads: HeldDownloads) -> None:
        self._deps, self._downloads = deps, downloads
        self._files = deps.database.files
        self._audit_log = AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/files", tags=["Files"])
        one = "/{file_id}"
        router.add_api_route(
            "",
            self.upload,
            methods=["POST"],
            response_model=FileObject,
            openapi_extra=FILE_BODY,
            responses=error_responses(409),
            dependencies=[Depends(idempotency_key_parameter)],
        )
        router.add_api_route("", self.list, response_model=FilePage, responses=error_responses(404))
        router.add_api_route(one, self.get, response_model=FileObject, responses=error_responses(404))
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedFile,
            responses=error_responses(404, 409),
            dependencies=self._audit_log.of_tenant(AuditAction.FILE_DELETE, FileTarget, ends=in_any_state),
        )
        router.add_api_route(
            one + "/content",
            self.content,
            response_class=Response,
            responses=FILE_RESPONSES,
            dependencies=[Depends(conditional_headers)],
        )
        return router

    async def upload(self, request: Request) -> Response:
        """Upload a file."""
        settings = self._deps.settings
        tenant, key = tenant_of(request, settings), idempotency_key_of(request)
        incoming = FileUpload(tenant, settings, key, observer=request.scope.get(SCOPE_OBSERVER))
        async with stream_body(request, file_size_limit(settings, None)) as body:
            row = await store_file(incoming, request.headers.get("content-type", ""), body, self._deps)
        return json_response(file_object(row))

    async def list(
        self,
        request: Request,
        purpose: Annotated[str | None, Query(description="only files of this purpose")] = None,
        limit: Annotated[str | None, Query(), limit_schema(10_000, 10_000)] = None,
        order: Annotated[str | None, Query(description="by creation"), enum_schema("asc", "desc")] = None,
        after: Annotated[str | None, Query(description="a file id")] = None,
    ) -> Response:
        """List files, newest first by default."""
        tenant = tenant_of(request, self._deps.settings)
        page_size, ascending = page_limit(limit, default=10_000, maximum=10_000), is_ascending(order)
        if after is not None and not is_file_id(after):
            raise file_not_found(after)
        if purpose is not None and purpose not in get_args(Purpose):
            return json_response(file_page([], more=False))
        try:
            rows, more = await self._files.page(
                tenant, purpose=purpose, limit=page_size, ascending=ascending, after=after
            )
        except UnknownCursor as error:
            raise file_not_found(error.id) from None
        if len(rows) <= _MAX_INLINE_OBJECTS:
            return _page_response(rows, more)
        return await asyncio.to_thread(_page_response, rows, more)

    async def get(self, request: Request, file_id: str) -> Response:
        """Retrieve a file object, without the file's content."""
        return json_response(file_object(await self._row(request, file_id)))

    async def content(self, request: Request, file_id: str) -> Response:
        """Download a file. If the header Range has a byte range, download only this range."""
        row = await self._row(request, file_id)
        size = 0 if is_head(request) else row.bytes
        try:
            with self._downloads.begin(row.tenant, size) as counted:
                shown = await file_response(request, row, self._deps.storage, without_body=is_head(request))
                return CountedResponse(shown, counted.pop_all())
        except ObjectMissing as error:
            await self._row(request, file_id)  # raises 404 if the file was deleted in the meantime
            logger.error("object of a file is missing", extra={"file_id": file_id, "error": str(error)})
            raise ApiError(500, f"The content of '{file_id}' is lost.", code="content_missing") from None

    async def delete(self, request: Request, file_id: str) -> Response:
        """Delete a file. A file that a running batch uses cannot be deleted (409)."""
        tenant = tenant_of(request, self._deps.settings)
        try:
            row = await self._files.delete(tenant, file_id) if is_file_id(file_id) else None
        except FileInUse as error:
            message = f"Cannot delete file '{file_id}': batch '{error.batch_id}' uses it until it ends."
            raise conflict(message) from None
        if row is None:
            raise file_not_found(file_id)
        await discard_object(row.storage_key, self._deps)
        return json_response(DeletedFile(id=file_id))

    async def _row(self, request: Request, file_id: str) -> FileRow:
        tenant = tenant_of(request, self._deps.settings)
        row = await self._files.get(tenant, file_id) if is_file_id(file_id) else None
        if row is None:
            raise file_not_found(file_id)
        return row


def _page_response(rows: list[FileRow], more: bool) -> Response:
    return json_response(file_page(rows, more=more))
