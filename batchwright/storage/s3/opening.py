"""The S3 storage the settings ask for, with one client and its connections."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError

from batchwright.rules.locations import Bucket
from batchwright.settings import Settings
from batchwright.storage.base import StorageUnavailable
from batchwright.storage.retries import Operation, Retries
from batchwright.storage.s3.bucket import Encryption, S3Bucket
from batchwright.storage.s3.errors import explained, is_passing
from batchwright.storage.s3.storage import S3Storage

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.literals import ServerSideEncryptionType

_CONNECTIONS = 64
_CONNECT_SECONDS, _SILENCE_SECONDS = 5, 20
_METHODS: dict[str, "ServerSideEncryptionType | None"] = {
    "": None,
    "AES256": "AES256",
    "aws:kms": "aws:kms",
    "aws:kms:dsse": "aws:kms:dsse",
}


@asynccontextmanager
async def open_s3(
    settings: Settings, place: Bucket, noted: Callable[[Operation], None]
) -> AsyncGenerator[S3Storage]:
    """Connects with the first request only; credentials come from boto's usual chain.

    Raises:
        StorageUnavailable: the profile or the region that the environment names does not exist.
    """
    async with AsyncExitStack() as opened:
        try:
            client = await opened.enter_async_context(_client(settings))
        except BotoCoreError as error:
            raise explained(error, "open", "", place.url) from error
        except ValueError as error:  # of an endpoint or a region that makes no address
            raise StorageUnavailable(f"Cannot open {place.url}: {error}.") from error
        retries = Retries(settings.storage_patience_seconds, is_passing, noted)
        encryption = Encryption(_METHODS[settings.s3_sse], settings.s3_sse_kms_key_id)
        yield S3Storage(S3Bucket(client, place, retries, encryption))


def _client(settings: Settings) -> AbstractAsyncContextManager["S3Client"]:
    session = aioboto3.Session(region_name=settings.s3_region or None)
    return session.client(  # pyright: ignore[reportUnknownMemberType] - of the services without types
        "s3", endpoint_url=settings.s3_endpoint_url or None, config=_config(settings)
    )


def _config(settings: Settings) -> AioConfig:
    """Only what every S3 server understands: no checksums but the one of the signature."""
    return AioConfig(
        signature_version="s3v4",
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_SILENCE_SECONDS,
        max_pool_connections=_CONNECTIONS,
        retries={"total_max_attempts": 1},  # ours repeat
        s3={"addressing_style": "path" if settings.s3_path_style else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent_extra="batchwright",
    )
