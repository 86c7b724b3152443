"""A stack that requires API keys: valid and revoked keys, and a search for secrets in all outputs."""

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from openai import AsyncOpenAI, AuthenticationError, NotFoundError, PermissionDeniedError
from temporalio.client import Client

from batchwright.rules.tenants.api_keys import ApiKey, new_key, parse_key
from tests.clients import http_client
from tests.e2e.batches import chat_lines, check_conservation, ended, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes.collector import Collector, collector
from tests.integration.starter.commands import batchwright

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
BACKEND_KEY = "planted-in-the-settings-of-the-backends"


class Keyed(NamedTuple):
    stack: Stack
    taken: Collector

    async def key(self, tenant: str, *options: str) -> ApiKey:
        """Create a tenant and a key with the commands that operators use, and return the key."""
        database_url = self.stack.now.postgres
        await batchwright("tenants", "create", tenant, database_url=database_url)
        created = await batchwright("keys", "create", tenant, *options, database_url=database_url)
        assert created.code == 0, created.stderr
        key = parse_key(created.stdout[0])
        assert key is not None
        return key

    def client(self, key: ApiKey) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.stack.now.api + "/v1", api_key=key.text, max_retries=5)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Keyed]:
    with collector() as taken:
        settings = {
            "BATCHWRIGHT_AUTH": "api_key",
            "BATCHWRIGHT_BACKEND_API_KEY": BACKEND_KEY,
            "OTEL_EXPORTER_OTLP_ENDPOINT": taken.url,
        }
        with dev("--workers", "1", data=None, **settings) as stack:
            yield Keyed(stack, taken)


async def test_a_tenant_runs_a_batch_with_its_key_and_no_other_tenant_sees_it(
    keyed: Keyed, tmp_path: Path
) -> None:
    lines = chat_lines(MODELS, each=5)
    async with keyed.client(await keyed.key("blue")) as client:
        done = await ended(client, (await submit(client, lines)).id)
        await check_conservation(client, done, lines)
    async with keyed.client(await keyed.key("red")) as other:
        with pytest.raises(NotFoundError):
            await other.batches.retrieve(done.id)
        assert [batch async for batch in other.batches.list()] == []
    async with keyed.client(await keyed.key("blue", "--scope", "read")) as reader:
        assert (await reader.batches.retrieve(done.id)).status == "completed"
        with pytest.raises(PermissionDeniedError):
            await reader.batches.cancel(done.id)


async def test_a_revoked_key_and_a_disabled_tenant_are_refused_within_seconds(keyed: Keyed) -> None:
    database_url = keyed.stack.now.postgres
    first, second = await keyed.key("green"), await keyed.key("green")

    async def is_out(client: AsyncOpenAI) -> bool:
        try:
            await client.files.list()
        except AuthenticationError:
            return True
        return False

    async with keyed.client(first) as one, keyed.client(second) as two:
        assert [await is_out(one), await is_out(two)] == [False, False]
        await batchwright("keys", "revoke", f"bw_{first.prefix}", database_url=database_url)
        await until(lambda: is_out(one))
        assert not await is_out(two)
        await batchwright("tenants", "disable", "green", database_url=database_url)
        await until(lambda: is_out(two))


async def test_the_command_line_sends_its_key(keyed: Keyed) -> None:
    key, url = await keyed.key("operators", "--scope", "read", "--scope", "admin"), keyed.stack.now.api
    listed = await batchwright("list", "--json", url=url, api_key=key.text)
    rates = await batchwright("rates", "--json", url=url, api_key=key.text)
    without = await batchwright("list", url=url)
    assert (listed.code, rates.code, without.code) == (0, 0, 3)
    assert "BATCHWRIGHT_API_KEY" in without.stderr


async def test_no_secret_can_be_read_anywhere(keyed: Keyed) -> None:
    key, wrong = await keyed.key("indigo"), new_key()
    async with keyed.client(key) as client:
        done = await ended(client, (await submit(client, chat_lines(MODELS, each=2))).id)
    answers = [text async for text in refusals(keyed.stack, key, wrong)]

    async def are_traced() -> bool:
        return bool(keyed.taken.of(done.id)) and "POST /v1/batches" in repr(keyed.taken.spans)

    await until(are_traced)
    read = {
        "logs": "".join(log.read_text() for log in (keyed.stack.now.data / "logs").iterdir()),
        "Temporal": "".join([text async for text in stored_in_temporal(keyed.stack)]),
        "traces": repr(keyed.taken.spans),
        "metrics": "".join([text async for text in metrics(keyed.stack)]),
        "answers": "".join(answers),
    }
    expected = {
        "logs": "key_id",
        "Temporal": done.id,
        "traces": done.id,
        "metrics": "batchwright_api_refusals_total",
        "answers": "invalid_api_key",
    }
    assert [place for place, text in read.items() if expected[place] not in text] == []
    secrets = {"key": key.secret, "wrong key": wrong.secret, "backend's key": BACKEND_KEY}
    assert [
        (name, place) for name, secret in secrets.items() for place in read if secret in read[place]
    ] == []


async def refusals(stack: Stack, key: ApiKey, wrong: ApiKey) -> AsyncGenerator[str]:
    """Yield the error responses to requests with a key in the wrong place, or with an invalid key."""
    async with http_client(base_url=stack.now.api) as http:
        for sent in (key, wrong):
            yield (await http.get("/v1/files", headers={"Authorization": sent.text})).text
            yield (await http.get("/v1/files", headers={"Authorization": f"Basic {sent.text}"})).text
            yield (await http.get("/v1/files", params={"api_key": sent.text})).text
            yield (await http.get(f"/v1/files/{sent.text}")).text
        for path in ("/v1/files", "/v1/nothing", "/admin/rates"):
            for sent in (key, wrong):
                headers = {"Authorization": f"Bearer {sent.text}"}
                yield (await http.post(path, headers=headers, content=b"{")).text


async def metrics(stack: Stack) -> AsyncGenerator[str]:
    async with http_client() as http:
        for url in stack.now.metrics:
            yield (await http.get(url)).text


async def stored_in_temporal(stack: Stack) -> AsyncGenerator[str]:
    """Yield the search attributes and the history events of all workflows, as text to search in."""
    client = await Client.connect(stack.now.temporal, namespace=stack.now.namespace)
    async for found in client.list_workflows():
        yield repr(found.raw_info)
        handle = client.get_workflow_handle(found.id, run_id=found.run_id)
        async for event in handle.fetch_history_events():
            yield event.SerializeToString().decode(errors="replace")
