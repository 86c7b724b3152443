"""A bucket with objects of a tenant, which batches name as their input, behind a proxy."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from secrets import token_hex

import pytest

from tests.fakes.s3 import S3Server, s3_client
from tests.fakes.s3_proxy import S3Proxy, proxied


class DataBucket:
    def __init__(self, server: S3Server, proxy: S3Proxy) -> None:
        self._server, self.proxy = server, proxy
        self._folder = f"test-{token_hex(8)}"
        self.location = f"s3://{server.bucket}/{self._folder}/"

    def put(self, name: str, data: bytes) -> str:
        """Write an object and return its URL."""
        client = s3_client(self._server.url)
        client.put_object(Bucket=self._server.bucket, Key=f"{self._folder}/{name}", Body=data)
        return self.location + name

    def settings(self, tenant: str) -> dict[str, object]:
        """Return settings of a process that may read the objects for this tenant, through the proxy."""
        return {
            "data_locations": {tenant: {"read": [self.location]}},
            "s3_endpoint_url": self.proxy.url,
            "s3_path_style": True,
        }


@asynccontextmanager
async def data_bucket(server: S3Server, environment: pytest.MonkeyPatch) -> AsyncGenerator[DataBucket]:
    server.lend_keys(environment)
    async with proxied(server.url) as proxy:
        yield DataBucket(server, proxy)
