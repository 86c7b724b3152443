"""/v1/files: upload, list, get, content, delete."""

import asyncio
import logging
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from api.content import conditional, content_response
from api.errors import ApiError, conflict, no_file
from api.idempotency import key_of, keyed
from api.objects import Deleted, FileObject, FilePage, answer, file_object, file_page
from api.parameters import enum_schema, limit_schema
from api.receiving import PURPOSES, Incoming, discard_object, largest, store
from api.responses import CONTENT, errors
from api.services import Services
from api.streams import streamed
from api.tenants import tenant_of
from batchwright.database.errors import FileInUse, UnknownCursor
from batchwright.database.rows import FileRow, Purpose
from batchwright.rules.ids import is_file_id
from batchwright.rules.paging import is_ascending, page_limit
from batchwright.storage.base import ObjectMissing

logger = logging.getLogger(__name__)

_AT_ONCE = 500  # objects of a list; more are made in a thread: the event loop is everybody's

_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": list(PURPOSES)},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
    },
}
_BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}


class FileRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._files = services.database.files

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/files", tags=["Files"])
        one = "/{file_id}"
        router.add_api_route(
            "",
            self.upload,
            methods=["POST"],
            response_model=FileObject,
            openapi_extra=_BODY,
            responses=errors(409),
            dependencies=[Depends(keyed)],
        )
        router.add_api_route("", self.list, response_model=FilePage, responses=errors(404))
        router.add_api_route(one, self.get, response_model=FileObject, responses=errors(404))
        router.add_api_route(
            one, self.delete, methods=["DELETE"], response_model=Deleted, responses=errors(404, 409)
        )
        router.add_api_route(
            one + "/content",
            self.content,
            response_class=Response,
            responses=CONTENT,
            dependencies=[Depends(conditional)],
        )
        return router

    async def upload(self, request: Request) -> Response:
        """Upload a file."""
        settings = self._services.settings
        incoming = Incoming(tenant_of(request, settings), settings, key_of(request))
        async with streamed(request, largest(settings, None)) as body:
            row = await store(incoming, request.headers.get("content-type", ""), body, self._services)
        return answer(file_object(row))

    async def list(
        self,
        request: Request,
        purpose: Annotated[str | None, Query(description="only files of this purpose")] = None,
        limit: Annotated[str | None, Query(), limit_schema(10_000, 10_000)] = None,
        order: Annotated[str | None, Query(description="by creation"), enum_schema("asc", "desc")] = None,
        after: Annotated[str | None, Query(description="a file id")] = None,
    ) -> Response:
        """List files."""
        tenant = tenant_of(request, self._services.settings)
        most, ascending = page_limit(limit, default=10_000, most=10_000), is_ascending(order)
        if after is not None and not is_file_id(after):
            raise no_file(after)
        if purpose is not None and purpose not in get_args(Purpose):
            return answer(file_page([], more=False))
        try:
            rows, more = await self._files.page(
                tenant, purpose=purpose, limit=most, ascending=ascending, after=after
            )
        except UnknownCursor as error:
            raise no_file(error.id) from None
        if len(rows) <= _AT_ONCE:
            return _listed(rows, more)
        return await asyncio.to_thread(_listed, rows, more)

    async def get(self, request: Request, file_id: str) -> Response:
        """Retrieve a file's description."""
        return answer(file_object(await self._row(request, file_id)))

    async def content(self, request: Request, file_id: str) -> Response:
        """Download a file, or the range of it that a Range header names."""
        row = await self._row(request, file_id)
        try:
            return await content_response(request, row, self._services.storage)
        except ObjectMissing as error:
            await self._row(request, file_id)  # deleted meanwhile: then it is unknown now
            logger.error("a file's object is missing", extra={"file_id": file_id, "error": str(error)})
            raise ApiError(500, f"The content of '{file_id}' is lost.", code="content_missing") from None

    async def delete(self, request: Request, file_id: str) -> Response:
        """Delete a file; one that an unfinished batch reads stays (409)."""
        tenant = tenant_of(request, self._services.settings)
        try:
            row = await self._files.delete(tenant, file_id) if is_file_id(file_id) else None
        except FileInUse as error:
            told = f"Cannot delete file '{file_id}': batch '{error.batch_id}' uses it until it ends."
            raise conflict(told) from None
        if row is None:
            raise no_file(file_id)
        await discard_object(row.storage_key, self._services)
        return answer(Deleted(id=file_id))

    async def _row(self, request: Request, file_id: str) -> FileRow:
        tenant = tenant_of(request, self._services.settings)
        row = await self._files.get(tenant, file_id) if is_file_id(file_id) else None
        if row is None:
            raise no_file(file_id)
        return row


def _listed(rows: list[FileRow], more: bool) -> Response:
    return answer(file_page(rows, more=more))
