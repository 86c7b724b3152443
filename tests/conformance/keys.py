"""Checks of API keys with the official Python client, on an API that requires keys."""

from secrets import token_hex

import pytest
from openai import AsyncOpenAI, AuthenticationError, NotFoundError, PermissionDeniedError

from batchwright.rules.tenants.api_keys import new_key
from tests.clients import http_client
from tests.conformance.contract import Api, Table
from tests.conformance.places import ISSUER_PORT
from tests.conformance.requests import done, sent
from tests.e2e.batches import until
from tests.integration.api.test_oidc import issuing, sign_in
from tests.integration.starter.commands import Ended, batchwright

TABLE = Table("keys")


async def operate(api: Api, *arguments: str) -> Ended:
    """Run a `batchwright` command with the database of the API, as an operator does. Return its outcome."""
    done = await batchwright(*arguments, database_url=api.stack.now.postgres)
    assert done.code == 0, done.stderr
    return done


async def keyed(api: Api, tenant: str, *options: str) -> AsyncOpenAI:
    """Create a tenant with a key, and return a client that uses the key.

    `options` are options of `batchwright keys create`.
    """
    await operate(api, "tenants", "create", tenant)
    created = await operate(api, "keys", "create", tenant, *options)
    return AsyncOpenAI(base_url=api.url, api_key=created.stdout[0])


def a_tenant() -> str:
    return f"tenant-{token_hex(4)}"


@TABLE.row("Errors", "without a key, or with an invalid one, every call is 401 `invalid_api_key`")
async def no_key(api: Api) -> None:
    async with http_client() as http:
        for path in ("/files", "/batches/batch_0", "/models", "/nothing"):
            answer = await http.get(api.url + path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (401, "invalid_api_key", None)
            assert answer.headers["www-authenticate"] == "Bearer"
    refused: list[AuthenticationError] = []
    for key in ("none", new_key().text):
        async with AsyncOpenAI(base_url=api.url, api_key=key) as client:
            with pytest.raises(AuthenticationError) as wrong:
                await client.files.list()
        refused.append(wrong.value)
    assert {(one.code, one.type, one.param) for one in refused} == {
        ("invalid_api_key", "invalid_request_error", None)
    }
    assert len({one.message for one in refused}) == 1


@TABLE.row("Errors", "a key belongs to a tenant: it can run batches, and sees nothing of another tenant")
async def own(api: Api) -> None:
    async with await keyed(api, a_tenant()) as client:
        assert [model.id async for model in client.models.list()] != []
        batch = await done(client)
        assert batch.status == "completed"
    async with await keyed(api, a_tenant()) as other:
        with pytest.raises(NotFoundError):
            await other.batches.retrieve(batch.id)
        assert [file async for file in other.files.list()] == []


@TABLE.row("Errors", "a key allows what its scopes allow; everything else is 403 `missing_scope`")
async def scopes(api: Api) -> None:
    async with await keyed(api, a_tenant(), "--scope", "read") as reader:
        assert [file async for file in reader.files.list()] == []
        with pytest.raises(PermissionDeniedError) as refused:
            await sent(reader)
    assert (refused.value.code, refused.value.type) == ("missing_scope", "invalid_request_error")


@TABLE.row("Errors", "a token of the login's issuer works like a key; one for another audience is 401")
async def tokens(api: Api) -> None:
    with issuing(ISSUER_PORT) as issuer:
        token, other = sign_in(issuer), sign_in(issuer, "another client")
        await batchwright("tenants", "create", "blue", database_url=api.stack.now.postgres)
        async with AsyncOpenAI(base_url=api.url, api_key=token) as client:
            batch = await done(client)
        async with AsyncOpenAI(base_url=api.url, api_key=other) as client:
            with pytest.raises(AuthenticationError, match="not for this API"):
                await client.batches.retrieve(batch.id)
    assert batch.status == "completed"


@TABLE.row("Errors", "a key of a disabled tenant is 401 within seconds, like an unknown one")
async def disabled(api: Api) -> None:
    tenant = a_tenant()
    async with await keyed(api, tenant) as client:
        assert [file async for file in client.files.list()] == []
        await operate(api, "tenants", "disable", tenant)

        async def is_out() -> bool:
            try:
                await client.files.list()
            except AuthenticationError as error:
                return error.code == "invalid_api_key"
            return False

        await until(is_out)
