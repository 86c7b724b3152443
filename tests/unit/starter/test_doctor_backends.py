"""Findings of `batchwright doctor` about the backends of a registry, over real sockets."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.inference.registry.model_catalog import CatalogEntry
from batchwright.settings import Settings, load
from batchwright.starter.diagnostics import backend_checks
from batchwright.starter.diagnostics.backend_checks import check_backends
from batchwright.starter.diagnostics.findings import Finding, Level
from batchwright.starter.embedded_stack.ports import free_port
from tests.fakes.raw_servers import Serve, answering, read_request, served

Findings = list[Finding]


def answer(status: str, body: bytes = b"{}", date: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + (f"date: {date}\r\n".encode() if date else b"") + b"\r\n" + body


def listing(*names: str, date: str = "") -> bytes:
    return answer("200 OK", json.dumps({"data": [{"id": name} for name in names]}).encode(), date)


def opened_by(keys: dict[bytes, bytes]) -> Serve:
    """Return a server that gives the response for the request's key in `keys`, and 401 for any other key."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        shown = [line.split(b" ")[-1] for line in head.split(b"\r\n") if b"authorization" in line.lower()]
        writer.write(keys.get(shown[0] if shown else b"", answer("401 Unauthorized")))
        await writer.drain()

    return serve


def installation(folder: Path, **settings: object) -> Settings:
    """Return settings of an installation whose database does not respond."""
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    return load(database_url=nowhere, secrets_dir=folder, **settings)


def registry(folder: Path, models: Mapping[str, object]) -> Settings:
    (folder / "models.yaml").write_text(json.dumps({"models": models}))
    return installation(folder, registry=folder / "models.yaml")


@asynccontextmanager
async def servers(*answers: Serve | bytes) -> AsyncGenerator[list[str]]:
    """Context manager that runs a server for each of `answers`, and yields their URLs."""
    async with AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(served(answering(each) if isinstance(each, bytes) else each))
            for each in answers
        ]
        yield [f"http://{target.authority.decode()}" for target in targets]


async def findings_of(settings: Settings) -> tuple[Findings, list[str]]:
    """Return the findings about backends (except those that mention the database), and the served models."""
    found, models, _ = await check_backends(settings, lambda: datetime.now(UTC))
    about = [finding for finding in found if finding.part == "backends"]
    return [finding for finding in about if "without the database" not in finding.message], models


async def test_every_backend_is_probed_with_its_own_key_and_has_one_line(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good")
    (tmp_path / "other").write_text("other")
    (tmp_path / "wrong").write_text("wrong")
    guarded = opened_by({b"good": listing("llama", "more"), b"other": answer("403 Forbidden")})
    async with servers(guarded) as [url]:
        keys = {"a": "good", "b": "other", "c": "wrong", "d": ""}
        models = {
            name: {"backends": [{"url": url, "model": "llama", "api_key_name": key}]}
            for name, key in keys.items()
        }
        found, served_models = await findings_of(registry(tmp_path, models))
    good, other, wrong, none = found
    assert [finding.level for finding in found] == [Level.OK, *(Level.PROBLEM,) * 3]
    assert good.message.startswith(f"{url} answers in ")
    assert good.message.endswith(" ms, accepts its key and serves llama, more.")
    assert other.message == f"{url} accepts the key, but does not allow listing models (403)."
    assert other.remedy.endswith(f"{tmp_path / 'other'}.")
    assert wrong.message == f"{url} does not accept its key (401)."
    assert wrong.remedy == f"Correct {tmp_path / 'wrong'}."
    assert none.message == f"{url} requires a key (401), and none is set."
    assert none.remedy == "Set `api_key_name` in the registry."
    assert served_models == ["a", "b", "c", "d"]


async def test_an_unreachable_backend_or_a_missing_model_is_reported_with_the_remedy(tmp_path: Path) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    async with servers(listing("llama"), listing(), answer("404 Not Found"), answer("502 Bad")) as urls:
        models = {
            name: {"backends": [{"url": url}]} for name, url in zip("abcde", [*urls, gone], strict=True)
        }
        lacking, empty, mute, broken, away = (await findings_of(registry(tmp_path, models)))[0]
    assert (lacking.level, empty.level, mute.level) == (Level.WARNING,) * 3
    assert lacking.message.endswith("and lists llama, but not a.")
    assert "correct `model`" in lacking.remedy
    assert empty.message.endswith("and lists no models.")
    assert mute.message == f"{urls[2]} answers, but does not list its models (404)."
    assert mute.remedy == "Make sure that it serves c."
    assert broken.message == f"{urls[3]}/v1/models answered 502."
    assert away.message.startswith(f"{gone}/v1/models: ")
    for finding in (broken, away):
        assert finding.level is Level.PROBLEM
        assert finding.remedy == "Check its URL in the registry, and the backend itself."


async def test_backends_with_equal_settings_are_probed_once_for_all_their_models(tmp_path: Path) -> None:
    async with servers(listing("one", "two")) as [url]:
        models = {name: {"backends": [{"url": url, "weight": 2}]} for name in ("one", "two")}
        found, _ = await findings_of(registry(tmp_path, models))
    assert [finding.level for finding in found] == [Level.OK]


async def test_for_backends_of_the_settings_a_refused_key_names_the_global_key(tmp_path: Path) -> None:
    async with servers(opened_by({})) as urls:
        [finding], _ = await findings_of(installation(tmp_path, backends=urls, backend_api_key="wrong"))
    assert finding.remedy == "Correct BATCHWRIGHT_BACKEND_API_KEY."


async def test_a_gateway_that_lists_nothing_readable_is_a_problem(tmp_path: Path) -> None:
    async with servers(answer("200 OK", b"<html>")) as urls:
        [finding], models = await findings_of(installation(tmp_path, backends=urls))
    assert (finding.level, models) == (Level.PROBLEM, [])
    assert finding.remedy == "Check its URL in BATCHWRIGHT_BACKENDS, and the backend itself."


async def test_the_models_of_a_gateway_that_lists_nothing_are_not_all_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def registered(*_: object) -> tuple[list[CatalogEntry], Findings]:
        return [], []

    monkeypatch.setattr(backend_checks, "_registered", registered)
    async with servers(listing("llama"), answer("500 Oops")) as (listed, failing):
        for urls, known in (([listed], True), ([listed, failing], False)):
            checked = await check_backends(installation(tmp_path, backends=urls), lambda: datetime.now(UTC))
            assert (checked.models, checked.all_models_known) == (["llama"], known)


async def test_unusable_certificates_are_named_and_no_request_is_sent(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    place = {"url": "https://localhost:1", "tls_ca_cert_file": str(tmp_path / "ca.pem")}
    [finding], _ = await findings_of(registry(tmp_path, {"a": {"backends": [place]}}))
    assert finding.level is Level.PROBLEM
    assert str(tmp_path / "ca.pem") in finding.message


async def test_without_the_database_run_time_changes_are_reported_as_unknown(tmp_path: Path) -> None:
    async with servers(listing("a")) as [url]:
        settings = registry(tmp_path, {"a": {"backends": [{"url": url}]}})
        found, _, all_models_known = await check_backends(settings, lambda: datetime.now(UTC))
    assert found[0].level is Level.WARNING
    assert "unknown without the database" in found[0].message
    assert not all_models_known


async def test_without_database_and_settings_the_backends_are_not_reported_as_missing(
    tmp_path: Path,
) -> None:
    found, models, all_models_known = await check_backends(installation(tmp_path), lambda: datetime.now(UTC))
    assert (models, all_models_known) == ([], False)
    assert [finding.level for finding in found] == [Level.WARNING] * 2
    assert "their backends were not checked" in found[0].message
    assert found[1].message == "Neither BATCHWRIGHT_BACKENDS nor BATCHWRIGHT_REGISTRY names a backend."


async def test_clocks_of_backends_are_one_line_except_wrong_ones(tmp_path: Path) -> None:
    now, late = datetime(2026, 5, 1, 12, tzinfo=UTC), "Fri, 01 May 2026 11:50:00 GMT"
    right = "Fri, 01 May 2026 12:00:00 GMT"
    dates = (right, right, late)
    async with servers(*(listing("a", date=date) for date in dates)) as urls:
        settings = registry(tmp_path, {"a": {"backends": [{"url": url} for url in urls]}})
        found = (await check_backends(settings, lambda: now)).findings
    off, together = (finding for finding in found if finding.part == "clock")
    assert off.message == f"Our clock is 600 s ahead of that of {urls[2]}."
    assert (together.level, together.message) == (Level.OK, "2 backends have clocks that agree with ours.")


async def test_a_backend_with_slots_and_without_in_flight_gets_a_warning(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        has_slots = head.startswith(b"GET /props ")
        writer.write(answer("200 OK", b'{"total_slots": 4}') if has_slots else listing("llama"))
        await writer.drain()

    async with servers(serve, listing("llama")) as [url, other]:
        for in_flight, warns in ((None, True), (8, True), (4, False), (2, False)):
            stated = {"url": url} if in_flight is None else {"url": url, "in_flight": in_flight}
            found, _ = await findings_of(registry(tmp_path, {"llama": {"backends": [stated]}}))
            about = [finding for finding in found if "requests at once" in finding.message]
            assert bool(about) is warns
            if warns:
                assert about[0].level is Level.WARNING
                assert about[0].message.startswith(f"{url} processes 4 requests at once and has ")
                assert "`in_flight` in the registry to 4" in about[0].remedy
        found, _ = await findings_of(registry(tmp_path, {"llama": {"backends": [{"url": other}]}}))
    assert [finding.level for finding in found] == [Level.OK]
