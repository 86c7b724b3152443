"""Tokens of a real issuer: the official client, the command line and `doctor`, with a real API process."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from openai import AuthenticationError, OpenAI
from pydantic import BaseModel

from batchwright.database.database import Database
from batchwright.settings import load
from batchwright.starter.diagnostics.checks import check_issuer, now
from batchwright.starter.diagnostics.findings import Level
from batchwright.starter.embedded_stack.ports import free_port
from tests.clients import SECONDS, get
from tests.fakes.api_keys import NOW
from tests.integration.api.test_process import running
from tests.integration.starter.commands import batchwright
from tests.integration.starter.stacks import until

pytestmark = pytest.mark.integration

_CLIENT = ("batches", "any secret")  # the issuer accepts any; tokens have the client's id as their audience
_BACK = "http://127.0.0.1/back"
_ALICE = {"sub": "alice", "tenant": "blue", "scope": "read write"}


class Tokens(BaseModel):
    id_token: str


@contextmanager
def issuing(port: int) -> Generator[str]:
    """Context manager that runs an issuer whose only user is alice, and yields its URL."""
    command = ["-m", "oidc_provider_mock", "--port", str(port), "--user-claims", json.dumps(_ALICE)]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: process.poll() is not None or _responds(port))
            assert process.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _responds(port: int) -> bool:
    try:
        return get(f"http://127.0.0.1:{port}/jwks").is_success
    except httpx.HTTPError:
        return False


def sign_in(issuer: str, client_id: str = _CLIENT[0]) -> str:
    """Sign in as alice with the authorization code flow, and return the ID token."""
    asked = {"client_id": client_id, "redirect_uri": _BACK, "response_type": "code", "scope": "openid"}
    with httpx.Client(base_url=issuer, timeout=SECONDS, trust_env=False) as http:
        back = http.post("/oauth2/authorize", params=asked, data={"sub": "alice"})
        [code] = parse_qs(urlsplit(back.headers["location"]).query)["code"]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": _BACK}
        answer = http.post("/oauth2/token", data=form, auth=(client_id, _CLIENT[1]))
    return Tokens.model_validate_json(answer.content).id_token


async def test_the_official_client_and_the_command_line_work_with_a_token_also_while_its_issuer_is_down(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    await database.tenants.create("blue", NOW)
    port = free_port()
    settings = {
        "auth": "api_key",
        "oidc_issuer": f"http://127.0.0.1:{port}",
        "oidc_audience": _CLIENT[0],
    }
    with running(tmp_path, database_url=database_url, **settings) as (_, http):
        with issuing(port) as issuer:
            token, other = sign_in(issuer), sign_in(issuer, "another client")
            client = OpenAI(base_url=f"{http.base_url}/v1", api_key=lambda: token, max_retries=0)
            file = client.files.create(file=("a.jsonl", b'{"custom_id": "a", "body": {}}\n'), purpose="batch")
            with pytest.raises(AuthenticationError, match="The token is not for this API"):
                client.with_options(api_key=other).files.list()
            [finding] = await check_issuer(load(**settings), now)
        assert finding.level is Level.OK
        assert finding.message == f"Tokens of {issuer} can be verified (usable keys: 1)."
        assert [each.id for each in client.files.list()] == [file.id]
        assert client.batches.list().data == []
        ended = await batchwright("list", "--json", url=str(http.base_url), api_key=token)
        assert (ended.code, ended.stderr) == (0, "")
    assert await database.files.get("blue", file.id) is not None
