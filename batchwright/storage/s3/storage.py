"""Storage in a bucket of S3 or of an S3-compatible server."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import TYPE_CHECKING, TypedDict

import aioboto3
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError

from batchwright.rules.stored_objects.object_keys import Bucket
from batchwright.settings import Settings
from batchwright.storage.base import (
    DatedObject,
    ObjectInfo,
    ObjectMissing,
    Storage,
    StorageUnavailable,
    check_key,
    check_prefix,
    is_key,
)
from batchwright.storage.retries import OperationRetries, StorageOperation
from batchwright.storage.s3.bucket import S3Bucket, S3Encryption
from batchwright.storage.s3.download import S3Download
from batchwright.storage.s3.errors import is_transient, to_storage_error
from batchwright.storage.s3.multipart_upload import S3Upload, put_object, sweep_uploads

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.literals import ServerSideEncryptionType

_DELETED_AT_ONCE = 16
_PATIENCE_SECONDS = 20.0  # how long an operation is retried
_WRITE_CHECK_SECONDS = 300.0  # each such check leaves versions in a bucket with versioning
# An object without a date must not count as old.
_NEW = datetime.max.replace(tzinfo=UTC)
_CONNECTIONS = 64
_CONNECT_SECONDS, _READ_SECONDS = 5, 20
_ENCRYPTION_METHODS: dict[str, "ServerSideEncryptionType | None"] = {
    "": None,
    "AES256": "AES256",
    "aws:kms": "aws:kms",
    "aws:kms:dsse": "aws:kms:dsse",
}


class _Page(TypedDict, total=False):
    ContinuationToken: str
    StartAfter: str


class S3Storage(Storage):
    """Storage in an S3 bucket. It uses only operations that every S3-compatible server has."""

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._checked = replace(bucket, retries=bucket.retries.without_retries())
        self._wrote_at: float | None = None  # time of the last check that wrote

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[S3Upload, None]:
        upload = S3Upload(self._bucket, check_key(key))
        try:
            yield upload
            await upload.finish()
        except BaseException:
            await asyncio.shield(upload.abort())
            raise

    async def put(self, key: str, data: bytes) -> None:
        await put_object(self._bucket, check_key(key), data)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if length == 0:
            await self.stat(key)
            return
        download = S3Download(self._bucket, check_key(key), start, length)
        try:
            while piece := await download.next():
                yield piece
        finally:
            download.close()

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        pieces = [piece async for piece in self.read(key, start, length)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def stat(self, key: str) -> ObjectInfo:
        client, bucket = self._bucket.client, self._bucket
        at = bucket.at(check_key(key))
        try:
            found = await bucket.call(
                StorageOperation.RETRIEVE, "read", key, lambda: client.head_object(Bucket=bucket.name, Key=at)
            )
        except ObjectMissing:
            await self._list_one(bucket)  # a HEAD does not tell if the bucket is missing
            raise
        return ObjectInfo(key, found["ContentLength"])

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for found in self.inventory(prefix):
            yield ObjectInfo(found.key, found.size)

    async def inventory(self, prefix: str, after: str = "") -> AsyncIterator[DatedObject]:
        client, bucket = self._bucket.client, self._bucket
        at, token = bucket.at(check_prefix(prefix)), _Page()
        if after:
            token = _Page(StartAfter=bucket.at(check_key(after)))
        while True:
            page = await bucket.call(
                StorageOperation.LIST,
                "list",
                prefix,
                lambda token=token: client.list_objects_v2(Bucket=bucket.name, Prefix=at, **token),
            )
            for found in page.get("Contents", []):
                key = found.get("Key", "").removeprefix(bucket.place.prefix)
                # Skip the empty objects that consoles show as folders; some servers ignore StartAfter.
                if is_key(key) and key > after:
                    yield DatedObject(key, found.get("Size", 0), found.get("LastModified", _NEW))
            if "NextContinuationToken" not in page:
                return
            token = _Page(ContinuationToken=page["NextContinuationToken"])

    async def delete(self, key: str) -> None:
        client, bucket = self._bucket.client, self._bucket
        at = bucket.at(check_key(key))
        await bucket.call(
            StorageOperation.DELETE, "delete", key, lambda: client.delete_object(Bucket=bucket.name, Key=at)
        )

    async def delete_prefix(self, prefix: str) -> int:
        keys = [info.key async for info in self.list(prefix)]
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            deletions = [self.delete(key) for key in keys[first : first + _DELETED_AT_ONCE]]
            for error in await asyncio.gather(*deletions, return_exceptions=True):
                if error is not None:
                    raise error
        return len(keys)

    async def check(self) -> None:
        """Raise StorageUnavailable if the bucket does not work.

        The call writes, reads and deletes a test object. If this has succeeded in the last five minutes, the
        call only lists the key of one object.
        """
        now = time.monotonic()
        if self._wrote_at is None or now - self._wrote_at >= _WRITE_CHECK_SECONDS:
            await self._write_and_read()
            self._wrote_at = now
        else:
            await self._list_one(self._checked)

    async def _write_and_read(self) -> None:
        key, checked = f"check-{token_hex(8)}", S3Storage(self._checked)
        try:
            await checked.put(key, b"ok")
            if await checked.get(key) != b"ok":
                raise StorageUnavailable(f"{self._bucket.place.url} returned other bytes than were written.")
        except ObjectMissing as error:
            raise StorageUnavailable(f"{self._bucket.place.url} lost an object that was written.") from error
        await checked.delete(key)

    async def _list_one(self, bucket: S3Bucket) -> None:
        """Raise StorageUnavailable if S3 refuses to list the key of one object, or does not respond.

        For this request, S3 returns more helpful error messages than for other requests.
        """
        client = bucket.client
        await bucket.call(
            StorageOperation.LIST,
            "list",
            "",
            lambda: client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.place.prefix, MaxKeys=1),
        )

    async def sweep(self, older_than: timedelta) -> int:
        """Abort the unfinished uploads that began at least `older_than` ago.

        Return the number of aborted uploads.
        """
        return await sweep_uploads(self._bucket, older_than)


@asynccontextmanager
async def open_s3(
    settings: Settings, place: Bucket, on_retry: Callable[[StorageOperation], None]
) -> AsyncGenerator[S3Storage]:
    """Context manager that opens the storage in the bucket `place`.

    `on_retry` is called each time an operation is retried. Raises the same errors as `open_bucket`.
    """
    async with open_bucket(settings, place, on_retry) as bucket:
        yield S3Storage(bucket)


@asynccontextmanager
async def open_bucket(
    settings: Settings, place: Bucket, on_retry: Callable[[StorageOperation], None]
) -> AsyncGenerator[S3Bucket]:
    """Context manager that opens the bucket `place`. The first request opens the connection.

    boto, the S3 library, finds the credentials in its usual way. `on_retry` is called each time an operation
    is retried.

    Raises:
        StorageUnavailable: the profile or the region in the environment does not exist, or an address in the
            settings is invalid.
    """
    async with open_client(settings, place) as client:
        yield bucket_of(client, settings, place, on_retry)


@asynccontextmanager
async def open_client(settings: Settings, place: Bucket) -> AsyncGenerator["S3Client"]:
    """Context manager that opens a client for all buckets of the S3 server in the settings.

    Raises the same errors as `open_bucket`. `place` is only used in the messages of these errors.
    """
    async with AsyncExitStack() as opened:
        try:
            # In a thread: reading the descriptions of S3 takes up to a second.
            client = await opened.enter_async_context(await asyncio.to_thread(_client, settings))
        except BotoCoreError as error:
            raise to_storage_error(error, "open", "", place.url) from error
        except ValueError as error:  # the endpoint or the region is not a valid address
            raise StorageUnavailable(f"Cannot open {place.url}: {error}.") from error
        yield client


def bucket_of(
    client: "S3Client", settings: Settings, place: Bucket, on_retry: Callable[[StorageOperation], None]
) -> S3Bucket:
    """Return an object for the bucket `place`. It uses `client`, which the caller has opened.

    `on_retry` is called each time an operation is retried.
    """
    retries = OperationRetries(_PATIENCE_SECONDS, is_transient, on_retry)
    encryption = S3Encryption(_ENCRYPTION_METHODS[settings.s3_sse], settings.s3_sse_kms_key_id)
    return S3Bucket(client, place, retries, encryption)


def ignore_retry(operation: StorageOperation) -> None:
    """Do nothing. Pass this function as `on_retry` for the buckets of users, because the metrics count only
    operations in Batchwright's own storage.
    """


def _client(settings: Settings) -> AbstractAsyncContextManager["S3Client"]:
    """Return a client that is not open yet. This call reads all files that the client needs."""
    core = get_session()
    loader = core.get_component("data_loader")
    for kind in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", kind)
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
        loader.load_data(name)
    session = aioboto3.Session(botocore_session=core, region_name=settings.s3_region or None)
    return session.client(  # pyright: ignore[reportUnknownMemberType] - of the services without types
        "s3", endpoint_url=settings.s3_endpoint_url or None, config=_config(settings)
    )


def _config(settings: Settings) -> AioConfig:
    """Return the configuration of the S3 client.

    It uses only features that every S3-compatible server has.
    """
    return AioConfig(
        signature_version="s3v4",
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_CONNECTIONS,
        retries={"total_max_attempts": 1},  # our own retries apply
        s3={"addressing_style": "path" if settings.s3_path_style else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent_extra="batchwright",
    )
