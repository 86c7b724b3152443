"""S3 servers for tests: the fake server of the package moto, and a real one if BATCHWRIGHT_TEST_S3_URL is
set.

The keys of the real server are in BATCHWRIGHT_TEST_S3_ACCESS_KEY and BATCHWRIGHT_TEST_S3_SECRET_KEY. Its
bucket is in BATCHWRIGHT_TEST_S3_BUCKET. Tests write only below prefixes `test-...`, which they delete at the
end.
"""

import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from batchwright.settings import load
from batchwright.storage.base import Storage
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics

_REGION = "us-east-1"
_BUCKET = "batchwright-test"
_MOTO_PAGE = 10
_AUTHORITY = Path(__file__).with_name("unused_authority.pem")


@dataclass(frozen=True)
class S3Server:
    url: str
    access_key: str
    secret_key: str
    bucket: str = _BUCKET
    page: int = 1000  # keys that a list answers at once

    @property
    def keys(self) -> dict[str, str]:
        """Environment variables for boto with the keys of this server.

        They hide the user's own AWS configuration.
        """
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            # Every client loads it, even for a server without TLS. By default, it has a hundred authorities.
            **({"AWS_CA_BUNDLE": str(_AUTHORITY)} if self.url.startswith("http:") else {}),
        }

    def lend_keys(self, environment: pytest.MonkeyPatch) -> None:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            environment.delenv(name, raising=False)
        for name, value in self.keys.items():
            environment.setenv(name, value)

    @asynccontextmanager
    async def storage(self, environment: pytest.MonkeyPatch) -> AsyncGenerator[Storage, None]:
        """Yield the storage of a worker, with a prefix of its own. All its objects are deleted at the end."""
        self.lend_keys(environment)
        for name, value in self.settings(fresh_prefix()).items():
            environment.setenv(name, value)
        async with open_storage(load(), Metrics(), StorageComponent.WORKER) as storage:
            yield storage
            await storage.delete_prefix("")

    def settings(self, prefix: str, url: str = "") -> dict[str, str]:
        """Return the environment variables of a storage with this prefix.

        Args:
            url: address of a proxy in front of the server; empty to connect to the server itself.
        """
        return {
            "BATCHWRIGHT_STORAGE": f"s3://{self.bucket}/{prefix}",
            "BATCHWRIGHT_S3_ENDPOINT_URL": url or self.url,
            "BATCHWRIGHT_S3_PATH_STYLE": "true",
        }

    async def make_bucket(self) -> None:
        import aioboto3  # a second of imports, of which most tests have no use

        session = aioboto3.Session(self.access_key, self.secret_key, region_name=_REGION)
        async with session.client("s3", endpoint_url=self.url) as client:  # pyright: ignore[reportUnknownMemberType]
            with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                await client.create_bucket(Bucket=self.bucket)


@cache
def s3_client(url: str) -> Any:
    """Return a synchronous client with the keys in the environment. Tests share it, because building it takes
    long.

    The return type is Any because botocore has no types for its clients.
    """
    import botocore.session

    return botocore.session.get_session().create_client("s3", endpoint_url=url, region_name=_REGION)


def read_service_models_once() -> None:
    """Let all boto sessions share one loader. Loading S3's description takes longer than most tests."""
    import botocore.session

    botocore.session.create_loader = cache(botocore.session.create_loader)


def real_server() -> S3Server | None:
    url = os.environ.get("BATCHWRIGHT_TEST_S3_URL")
    if not url:
        return None
    return S3Server(
        url,
        os.environ["BATCHWRIGHT_TEST_S3_ACCESS_KEY"],
        os.environ["BATCHWRIGHT_TEST_S3_SECRET_KEY"],
        os.environ.get("BATCHWRIGHT_TEST_S3_BUCKET", _BUCKET),
    )


@contextmanager
def moto_server(port: int = 0) -> Generator[S3Server]:
    """Run moto's S3 server in a thread, and yield it.

    It checks no signatures and keeps all objects in memory.

    Args:
        port: port on which it listens; 0 for a free one.
    """
    from moto.server import ThreadedMotoServer  # another

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(_MOTO_PAGE)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}", "test-key", "test-secret", page=_MOTO_PAGE)
    finally:
        server.stop()


def fresh_prefix() -> str:
    return f"test-{token_hex(8)}"
