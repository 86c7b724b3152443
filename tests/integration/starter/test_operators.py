"""Commands for operators, on complete and on incomplete installations."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.database.driver import connect as connect_database
from batchwright.database.postgres import open_database
from batchwright.settings import Settings, load
from batchwright.starter.commands.operations.config import configuration
from batchwright.starter.diagnostics.examine import examine
from batchwright.starter.diagnostics.findings import DiagnosticReport, Finding, Level
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.storage.local import LocalStorage
from tests.integration.starter.commands import batchwright
from tests.integration.temporal.clusters import cluster

pytestmark = pytest.mark.integration


@asynccontextmanager
async def backend(*models: str) -> AsyncGenerator[str]:
    """Context manager that runs a backend with these models, and yields its URL.

    Its responses have a Date header.
    """

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in models]})

    app = web.Application()
    app.router.add_get("/v1/models", listed)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def installation(
    tmp_path: Path, database_url: str, *, is_set_up: bool = True
) -> AsyncGenerator[Settings]:
    """Context manager that yields the settings of a complete installation without workers.

    If `is_set_up` is False, the Temporal namespace is not set up.
    """
    LocalStorage(tmp_path / "objects")
    async with cluster(is_set_up=is_set_up) as address, backend("llama", "org/qwen:7b") as url:
        yield load(
            temporal_address=address,
            database_url=database_url,
            storage_dir=tmp_path / "objects",
            backends=[url],
        )


def nowhere(tmp_path: Path) -> Settings:
    """Return the settings of an installation of which no server and no directory exists."""
    storage = tmp_path / "file"
    storage.touch()
    return load(
        temporal_address=f"127.0.0.1:{free_port()}",
        database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/none",
        storage_dir=storage,
        backends=[f"http://127.0.0.1:{free_port()}"],
    )


def of(report: DiagnosticReport, part: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.part == part]


def levels(report: DiagnosticReport) -> list[tuple[str, Level]]:
    return [(finding.part, finding.level) for finding in report.findings]


async def test_a_sound_installation_without_workers_has_idle_queues_and_nothing_else(
    tmp_path: Path, database_url: str
) -> None:
    async with installation(tmp_path, database_url) as settings:
        report = await examine(settings)
    assert levels(report) == [
        *((part, Level.OK) for part in ("settings", "database", "tables", "clock", "storage")),
        *((part, Level.OK) for part in ("backends", "clock", "temporal", "namespace", "clock")),
        *(("workers", Level.WARNING),) * 5,
    ]
    assert report.is_sound
    assert of(report, "backends")[0].message.endswith(" serves llama, org/qwen:7b.")
    assert of(report, "workers")[0] == Finding(
        part="workers",
        level=Level.WARNING,
        message="No worker polls control, so its tasks wait.",
        remedy="Start `batchwright worker`.",
    )
    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("minutes", "side"), [(10, "ahead of"), (-10, "behind")])
async def test_a_clock_that_is_ten_minutes_off_is_a_warning(
    minutes: int, side: str, tmp_path: Path, database_url: str
) -> None:
    async with installation(tmp_path, database_url) as settings:
        report = await examine(settings, lambda: datetime.now(UTC) + timedelta(minutes=minutes))
    clocks = of(report, "clock")
    assert [finding.level for finding in clocks] == [Level.WARNING] * 3
    for finding, name in zip(clocks, ("PostgreSQL", settings.backends[0], "Temporal"), strict=True):
        assert side in finding.message
        assert finding.message.endswith(f"that of {name}.")
        assert "NTP" in finding.remedy
    assert report.is_sound


async def test_the_doctor_checks_the_backend_of_a_model_registered_at_run_time(
    tmp_path: Path, database_url: str
) -> None:
    async with installation(tmp_path, database_url) as settings, backend("tiny") as url:
        database = await open_database(settings)
        config = ModelConfig(backends=[BackendConfig(url=url)])
        await database.model_changes.put("tiny", config, datetime.now(UTC), lambda rows: None)
        await database.close()
        report = await examine(settings)
    assert [finding.level for finding in of(report, "backends")] == [Level.OK] * 2
    assert of(report, "backends")[1].message.startswith(f"{url} answers in ")
    assert [finding.message for finding in of(report, "clock")][
        1
    ] == "2 backends have clocks that agree with ours."
    assert len(of(report, "workers")) == 5


async def test_each_missing_service_is_a_problem(tmp_path: Path) -> None:
    report = await examine(nowhere(tmp_path))
    assert levels(report) == [
        ("settings", Level.OK),
        *((part, Level.PROBLEM) for part in ("database", "storage")),
        ("backends", Level.WARNING),
        *((part, Level.PROBLEM) for part in ("backends", "temporal")),
    ]
    assert not report.is_sound


async def test_workers_are_not_vouched_for_without_the_database(tmp_path: Path, database_url: str) -> None:
    async with installation(tmp_path, database_url) as settings:
        lost = {"database_url": nowhere(tmp_path).database_url}
        report = await examine(settings.model_copy(update=lost))
    assert of(report, "database")[0].level is Level.PROBLEM
    assert of(report, "workers")[-1].message == (
        "The task queues of some models were not checked, because not all models are known."
    )


async def test_a_namespace_without_search_attributes_is_reported_with_the_remedy(
    tmp_path: Path, database_url: str
) -> None:
    async with installation(tmp_path, database_url, is_set_up=False) as settings:
        report = await examine(settings)
    [finding] = of(report, "namespace")
    assert finding.level is Level.PROBLEM
    assert finding.message.endswith("run `batchwright setup temporal`.")


async def test_a_missing_namespace_is_reported_with_the_remedy(tmp_path: Path, database_url: str) -> None:
    async with installation(tmp_path, database_url) as settings:
        report = await examine(settings.model_copy(update={"temporal_namespace": "nowhere"}))
    [finding] = of(report, "namespace")
    assert "has no namespace 'nowhere': run `batchwright setup temporal`" in finding.message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("DELETE FROM migrations WHERE name = (SELECT max(name) FROM migrations)", "The database lacks "),
        (
            "INSERT INTO migrations (name, checksum, breaking) VALUES ('9999_later', 'x', true)",
            "the migration '9999_later', with which this version",
        ),
        ("UPDATE migrations SET checksum = 'x'", "is not the one that was applied"),
    ],
    ids=["behind", "ahead", "changed"],
)
async def test_tables_of_another_version_are_a_problem(
    change: str, expected: str, tmp_path: Path, database_url: str
) -> None:
    connection = await connect_database(database_url)
    await connection.execute(change)
    await connection.close()
    report = await examine(nowhere(tmp_path).model_copy(update={"database_url": database_url}))
    [finding] = of(report, "tables")
    assert finding.level is Level.PROBLEM
    assert expected in finding.message


async def test_the_doctor_prints_each_problem_within_80_columns_and_exits_with_1(tmp_path: Path) -> None:
    settings = nowhere(tmp_path)
    expected = {
        "temporal_address": settings.temporal_address,
        "database_url": settings.database_url,
        "storage_dir": str(settings.storage_dir),
        "backends": json.dumps(settings.backends),
    }
    shown = await batchwright("doctor", **expected)
    as_json = await batchwright("doctor", "--json", **expected)
    assert (shown.code, shown.stderr, as_json.code) == (1, "", 1)
    assert max(map(len, shown.stdout)) <= 80
    assert [line.split()[:2] for line in shown.stdout if not line.startswith(" ")] == [
        ["ok", "settings"],
        *(["problem", part] for part in ("database", "storage")),
        ["warning", "backends"],
        *(["problem", part] for part in ("backends", "temporal")),
    ]
    assert len(DiagnosticReport.model_validate_json(as_json.stdout[0]).findings) == 6


async def test_a_wrong_setting_is_a_problem_too() -> None:
    ended = await batchwright("doctor", temporal_address="nowhere")
    assert ended.code == 1
    assert ended.stdout[0].startswith("problem  settings  BATCHWRIGHT_TEMPORAL_ADDRESS is wrong")


async def _set_heartbeat_age(database_url: str, worker: str, age: str) -> None:
    connection = await connect_database(database_url)
    await connection.execute(f"UPDATE workers SET beat_at = now() - interval '{age}' WHERE id = $1", worker)
    await connection.close()


async def test_the_fleet_is_shown_from_the_database_and_temporal(tmp_path: Path, database_url: str) -> None:
    async with installation(tmp_path, database_url) as settings:
        database = await open_database(settings)
        now = datetime.now(UTC)
        later = now + timedelta(hours=1)
        await database.models.replace_models(settings.backends[0], ["llama"], later)
        await database.workers.record_heartbeat("one:1", {"in_flight": 3})
        await database.workers.record_heartbeat("two:1", {"in_flight": 1})
        await _set_heartbeat_age(database_url, "one:1", "-1 hour")  # alive for as long as the commands take
        await _set_heartbeat_age(database_url, "two:1", "1 minute")
        await database.close()
        expected = {
            "temporal_address": settings.temporal_address,
            "database_url": settings.database_url,
            "backends": json.dumps(settings.backends),
        }
        models = await batchwright("models", "--json", **expected)
        workers = await batchwright("workers", "--json", **expected)
        queues = await batchwright("queues", "--json", **expected)
        tables = [await batchwright(name, **expected) for name in ("models", "workers", "queues")]
    [model] = json.loads(models.stdout[0])["models"]
    queue = model["queue"]
    assert (model["model"], model["backends"]) == ("llama", settings.backends)
    assert [worker["id"] for worker in json.loads(workers.stdout[0])["workers"]] == ["one:1"]
    found = {each["name"]: each for each in json.loads(queues.stdout[0])["queues"]}
    assert list(found) == ["control", "io", "outputs", "webhooks", "dispatch", queue]
    assert found["io"] == {"name": "io", "backlog": 0, "oldest_seconds": 0.0, "pollers": 0, "limit": None}
    assert [table.code for table in tables] == [0, 0, 0]
    assert max(len(line) for table in tables for line in table.stdout) <= 80


@pytest.mark.parametrize("command", ["models", "workers", "queues"])
async def test_an_unreachable_database_is_reported_with_the_setting_that_names_it(command: str) -> None:
    ended = await batchwright(command, database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    assert (ended.code, ended.stdout) == (3, [])
    assert ended.stderr.startswith("PostgreSQL does not answer at ")
    assert ended.stderr.rstrip().endswith(
        "the connection was refused. "
        "This command uses the database directly, at the address in BATCHWRIGHT_DATABASE_URL."
    )
    assert len(ended.stderr.splitlines()) == 1


async def test_the_settings_are_shown_with_their_source_and_without_secrets(tmp_path: Path) -> None:
    secrets = {
        "database_url": "postgresql://ada:hunter2@db.example/batches",
        "backend_api_key": "hunter3",
        "temporal_api_key": "hunter4",
        "api_key": "hunter5",
    }
    shown = await batchwright("config", "show", max_lines="7", **secrets)
    whole = await batchwright("config", "show", "--json", max_lines="7", **secrets)
    assert (shown.code, whole.code) == (0, 0)
    assert "hunter" not in "".join([*shown.stdout, *whole.stdout])
    assert max(map(len, shown.stdout)) <= 80
    settings = {each["name"]: each for each in json.loads(whole.stdout[0])["settings"]}
    assert settings["BATCHWRIGHT_MAX_LINES"]["value"] == 7
    assert settings["BATCHWRIGHT_MAX_LINES"]["source"] == "environment"
    assert settings["BATCHWRIGHT_SLICE_SECONDS"]["source"] == "default"
    assert settings["BATCHWRIGHT_DATABASE_URL"]["value"] == "db.example/batches"
    assert settings["BATCHWRIGHT_BACKEND_API_KEY"]["value"] == "(secret)"


def test_the_fingerprint_is_equal_if_all_relevant_settings_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(**settings: object) -> str:
        return configuration(load(**settings)).fingerprint

    monkeypatch.setenv("ONE", os.urandom(32).hex())
    monkeypatch.setenv("TWO", os.urandom(32).hex())
    assert fingerprint() == fingerprint(metrics_port=9100, api_port=1, log_level="DEBUG", tenant="blue")
    assert fingerprint() != fingerprint(max_lines=7)
    assert fingerprint(payload_keys=["k=env:ONE"]) != fingerprint(payload_keys=["k=env:TWO"])
    assert fingerprint(backend_api_key="a") == fingerprint(backend_api_key="b") != fingerprint()
