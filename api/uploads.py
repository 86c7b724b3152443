"""/v1/uploads: a file in parts; create, add parts, complete, cancel."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, Request, Response

from api.allowance import Allowance
from api.bodies import read_object
from api.errors import ApiError, no_upload
from api.idempotency import Keys, fingerprint, key_of, keyed
from api.joining import join
from api.objects import PartObject, UploadObject, answer, part_object, upload_object
from api.parts import store_part
from api.places import Places
from api.responses import errors
from api.services import Services
from api.streams import streamed
from api.tenants import tenant_of
from api.upload_bodies import COMPLETION, CREATION, MAX_PARTS, PART, Completion, read_completion, read_upload
from batchwright.database.errors import UnknownUpload, UploadClosed, UploadFull
from batchwright.database.upload_rows import UploadRow, UploadStatus
from batchwright.rules import keys
from batchwright.rules.ids import is_upload_id
from batchwright.storage.base import ObjectMissing, StorageError

logger = logging.getLogger(__name__)


class UploadRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._uploads = services.database.uploads
        settings = services.settings
        self._places = Places(settings.api_completes, settings.api_complete_wait_seconds)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/uploads", tags=["Uploads"])
        one = "/{upload_id}"
        router.add_api_route(
            "",
            self.create,
            methods=["POST"],
            response_model=UploadObject,
            openapi_extra=CREATION,
            responses=errors(409),
            dependencies=[Depends(keyed)],
        )
        router.add_api_route(
            one + "/parts",
            self.add_part,
            methods=["POST"],
            response_model=PartObject,
            openapi_extra=PART,
            responses=errors(404),
        )
        router.add_api_route(
            one + "/complete",
            self.complete,
            methods=["POST"],
            response_model=UploadObject,
            openapi_extra=COMPLETION,
            responses=errors(404),
        )
        router.add_api_route(
            one + "/cancel",
            self.cancel,
            methods=["POST"],
            response_model=UploadObject,
            responses=errors(404),
        )
        return router

    async def create(self, request: Request) -> Response:
        """Announce a file of at most 8 GB that will come in parts, within an hour."""
        tenant, key = tenant_of(request, self._services.settings), key_of(request)
        fields = await read_object(request)
        row = read_upload(fields, tenant, self._services.clock(), self._services.settings)
        if key is None:
            async with self._room(row):
                await self._uploads.insert(row)
        else:
            row = await self._first(row, key, fingerprint(fields))
        return answer(upload_object(row, "pending", None))

    async def _first(self, row: UploadRow, key: str, fingerprint: str) -> UploadRow:
        """The upload that the key belongs to."""
        claimed = Keys(self._services, row.tenant, "uploads")
        made = await claimed.find(key, fingerprint)
        if made is None:
            async with self._room(row):
                made = await claimed.claim(key, fingerprint, row.model_dump_json(), row)
        return row if made is None else UploadRow.model_validate_json(made)

    @asynccontextmanager
    async def _room(self, row: UploadRow) -> AsyncGenerator[None]:
        """For what is announced, while its row is made. Raises ApiError where there is none."""
        allowance = Allowance(self._services, row.tenant)
        room = await allowance.room()
        allowance.check_room(room, row.bytes)
        async with allowance.held(row.id, row.bytes, room):
            yield

    async def add_part(self, request: Request, upload_id: str) -> Response:
        """Add a part of at most 64 MB; parts may come in parallel and in any order."""
        services = self._services
        async with streamed(request, services.settings.max_part_bytes, "data") as body:
            row = await self._row(request, upload_id)
            _expect_pending(row.id, row.status_at(services.clock()))
            try:
                part = await store_part(row, request.headers.get("content-type", ""), body, services)
            except UnknownUpload:
                raise no_upload(upload_id) from None
            except UploadClosed as error:
                raise _closed(upload_id, error.status) from None
            except UploadFull:
                most = services.settings.max_upload_bytes
                message = f"The upload is full: at most {MAX_PARTS} parts of together {most} bytes."
                raise ApiError(400, message, code="upload_full", param="data") from None
        return answer(part_object(part))

    async def complete(self, request: Request, upload_id: str) -> Response:
        """Make the file of the parts, in the order given; a repeat with the same parts changes nothing."""
        row = await self._row(request, upload_id)
        completion = read_completion(await read_object(request))
        status = row.status_at(self._services.clock())
        if status == "pending":
            row = await self._joined(row, completion)
        elif status != "completed":
            raise _closed(upload_id, status)
        if row.completion != completion.digest:
            raise _closed(upload_id, row.status)
        return await self._answer(row)

    async def cancel(self, request: Request, upload_id: str) -> Response:
        """Take no more parts and forget those there are; a repeat changes nothing."""
        row = await self._row(request, upload_id)
        now = self._services.clock()
        row = await self._uploads.cancel(row.tenant, row.id, now) or row
        if row.status_at(now) != "cancelled":
            raise _closed(upload_id, row.status_at(now))
        await self._discard_parts(row)
        return await self._answer(row)

    async def _joined(self, row: UploadRow, completion: Completion) -> UploadRow:
        """Copying 8 GB takes minutes: so many at once, and an upload that is asked for again only once."""
        async with self._places.taken(row.tenant, row.id) as waited:
            there = await self._uploads.get(row.tenant, row.id) if waited else row
            if there is None or there.status != "pending":
                return there or row
            return await self._join(there, completion)

    async def _join(self, row: UploadRow, completion: Completion) -> UploadRow:
        try:
            joined = await join(row, completion, self._services)
        except (ApiError, ObjectMissing) as error:
            joined = await self._settled_meanwhile(row, error)
        await self._discard_parts(joined)
        return joined

    async def _settled_meanwhile(self, row: UploadRow, error: ApiError | ObjectMissing) -> UploadRow:
        """The row, if parts are missing because the upload was completed, cancelled or swept meanwhile."""
        there = await self._uploads.get(row.tenant, row.id)
        if there is not None and there.status != "pending":
            return there
        if isinstance(error, ApiError):
            raise error
        logger.error("a part's object is missing", extra={"upload_id": row.id, "error": str(error)})
        raise ApiError(500, "A part of the upload is lost.", code="content_missing")

    async def _discard_parts(self, row: UploadRow) -> None:
        """What fails here the sweep does."""
        try:
            await self._services.storage.delete_prefix(keys.parts_root(row.tenant, row.id))
        except StorageError as error:
            logger.warning("parts are left to the sweep", extra={"upload_id": row.id, "error": str(error)})

    async def _answer(self, row: UploadRow) -> Response:
        files = self._services.database.files
        file = None if row.file_id is None else await files.get(row.tenant, row.file_id)
        return answer(upload_object(row, row.status_at(self._services.clock()), file))

    async def _row(self, request: Request, upload_id: str) -> UploadRow:
        tenant = tenant_of(request, self._services.settings)
        row = await self._uploads.get(tenant, upload_id) if is_upload_id(upload_id) else None
        if row is None:
            raise no_upload(upload_id)
        return row


def _expect_pending(upload_id: str, status: UploadStatus) -> None:
    if status != "pending":
        raise _closed(upload_id, status)


def _closed(upload_id: str, status: str) -> ApiError:
    message = f"Upload '{upload_id}' takes this no more: its status is '{status}'."
    return ApiError(400, message, code="upload_not_pending")
