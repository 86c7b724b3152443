"""Signatures, which moto does not check. Skipped unless BATCHWRIGHT_TEST_S3_URL names a real server."""

import pytest

from batchwright.settings import load
from batchwright.storage.base import StorageUnavailable
from batchwright.storage.factory import open_storage
from batchwright.storage.observed import StorageComponent
from batchwright.telemetry.metrics import Metrics
from tests.fakes.s3 import S3Server, fresh_prefix

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_wrong_keys_are_refused_and_named(
    real_s3: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real_s3.lend_keys(monkeypatch)
    monkeypatch.setenv(name, "wrong")
    for setting, value in real_s3.settings(fresh_prefix()).items():
        monkeypatch.setenv(setting, value)
    async with open_storage(load(), Metrics(), StorageComponent.WORKER) as storage:
        for call in (storage.check(), storage.put("a", b"x"), storage.get("a"), storage.delete_prefix("")):
            with pytest.raises(StorageUnavailable, match="the keys are wrong: correct AWS_ACCESS_KEY_ID"):
                await call
