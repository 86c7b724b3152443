"""Wrong API keys are counted by client address.

If a trusted proxy forwards the request, the address is that in its header, otherwise that of the connection.
"""

from pathlib import Path

import httpx
import pytest

from batchwright.rules.tenants.api_keys import new_key
from tests.integration.api.test_process import running

pytestmark = pytest.mark.integration


def guess(client: httpx.Client, forwarded_for: str) -> int:
    headers = {"Authorization": f"Bearer {new_key().text}", "X-Forwarded-For": forwarded_for}
    return client.get("/v1/files", headers=headers).status_code


@pytest.mark.parametrize(
    ("proxies", "statuses"),
    [("[]", [401, 429, 429]), ('["127.0.0.0/8"]', [401, 429, 401])],
    ids=["nobody is trusted", "a network is"],
)
async def test_wrong_keys_are_counted_by_address(
    proxies: str, statuses: list[int], database_url: str, tmp_path: Path
) -> None:
    settings = {"auth": "api_key", "auth_failures_per_minute": "1", "trusted_proxies": proxies}
    with running(tmp_path, database_url=database_url, **settings) as (_, client):
        clients = ("192.0.2.1", "192.0.2.1", "192.0.2.2")
        assert [guess(client, address) for address in clients] == statuses
