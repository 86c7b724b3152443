"""Findings of `batchwright doctor` about the issuer of tokens."""

from batchwright.settings import load
from batchwright.starter.diagnostics.checks import check_issuer, now
from batchwright.starter.diagnostics.findings import Level
from batchwright.starter.embedded_stack.ports import free_port
from tests.fakes.raw_servers import answering, served


async def test_without_an_issuer_there_is_no_finding() -> None:
    assert await check_issuer(load(), now) == []


async def test_an_issuer_that_is_down_is_a_problem() -> None:
    issuer = f"http://127.0.0.1:{free_port()}"
    [finding] = await check_issuer(load(oidc_issuer=issuer, oidc_audience="batches"), now)
    assert (finding.part, finding.level) == ("issuer", Level.PROBLEM)
    assert finding.message.startswith(f"{issuer}/.well-known/openid-configuration cannot be fetched ")
    assert "BATCHWRIGHT_OIDC_ISSUER" in finding.remedy


async def test_a_server_that_is_no_issuer_is_a_problem() -> None:
    page = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\n<html>"
    async with served(answering(page)) as target:
        issuer = f"http://{target.authority.decode()}"
        [finding] = await check_issuer(load(oidc_issuer=issuer, oidc_audience="batches"), now)
    assert (finding.part, finding.level) == ("issuer", Level.PROBLEM)
    assert "returned no valid document" in finding.message
