"""Commands that show, estimate and cap the cost of batches."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from batchwright.contracts.api_objects.estimates import EstimateObject
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import Usage
from batchwright.database.records import SliceProgress
from batchwright.rules.stored_objects.object_locations import ObjectLocation
from batchwright.settings import Settings
from batchwright.starter.batch_output import money_text
from tests.fakes.small_memory import small_memory
from tests.unit.starter.cli import LATER, Cli, run_now, served

PRICES = {"llama": PriceConfig(currency="EUR", input="0.5", output="2", request="1")}
REGISTRY = """
models:
  llama:
    backends: [{url: "http://one:8000"}]
    aliases: [gpt]
    prices: {currency: EUR, input: 0.5, output: 2, request: 1}
"""
_BODY = '{"model": "gpt", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}'
LINE = f'{{"custom_id": "a", "body": {_BODY}}}\n'


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        running.api.served.prices = PRICES
        yield running
        running.api.served.prices = {}


def running(cli: Cli, folder: Path, *options: str) -> str:
    """Submit a batch, let one line of it succeed, and return the batch's id."""
    batch_id = cli.submitted(folder, *options).order.batch_id
    models = [ModelCounts(model="llama", lines=3)]
    start = cli.api.database.batches.start
    run_now(start("default", batch_id, total=3, models=models, at=LATER, prices=PRICES))
    progress = SliceProgress(
        tenant="default",
        batch_id=batch_id,
        model="llama",
        number=0,
        generation=0,
        attempt=1,
        completed=1,
        failed=0,
        usage=Usage(input_tokens=3),
    )
    run_now(cli.api.database.progress.record([progress]))
    return batch_id


def test_status_shows_the_cost_so_far_and_the_cap(cli: Cli, tmp_path: Path) -> None:
    batch_id = running(cli, tmp_path, "--max-cost", "2.50")
    assert "1.000002 EUR so far, at most 2.5" in cli.run("status", batch_id).stdout
    cli.end(batch_id)
    assert "EUR so far" not in cli.run("status", batch_id).stdout


def test_a_cap_is_changed_and_removed(cli: Cli, tmp_path: Path) -> None:
    batch_id = running(cli, tmp_path)
    assert "at most 30" in cli.run("max-cost", batch_id, "30").stdout
    assert "at most" not in cli.run("max-cost", batch_id).stdout
    refused = cli.run("max-cost", batch_id, "1")
    assert refused.exit_code == 3
    assert "1.0000015 EUR already, which is more than 1" in refused.stderr


def test_submit_estimates_without_creating_a_batch_or_leaving_the_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(LINE.replace("gpt", "llama"))
    found = EstimateObject.model_validate_json(cli.run("submit", str(path), "--estimate", "--json").stdout)
    assert found.cost is not None
    assert found.cost.at_most == "1.0000225"
    assert "1.000022 EUR" in cli.run("submit", str(path), "--estimate").stdout
    assert (cli.api.database.rows.batches, cli.api.database.rows.files) == ({}, {})


def test_an_estimate_of_an_invalid_input_exits_with_1(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(2 * LINE)
    found = cli.run("submit", str(path), "--estimate")
    assert found.exit_code == 1
    assert f"The batch would fail: 1 error. `batchwright validate {path}` shows it." in found.stderr


def test_validate_estimates_offline_by_the_prices_of_the_registry_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(REGISTRY)
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    registry = {"BATCHWRIGHT_REGISTRY": str(tmp_path / "models.yaml")}
    shown = cli.run("validate", str(path), "--estimate", "--json", **registry)
    [model] = json.loads(shown.stdout)["estimate"]["models"]
    assert (model["model"], model["cost"]["at_most"]) == ("llama", "1.0000225")
    assert "1.000022 EUR" in cli.run("validate", str(path), "--estimate", **registry).stdout


def test_validate_estimates_offline_by_the_prices_of_the_gateway(cli: Cli, tmp_path: Path) -> None:
    gateway = "gateway: {url: 'http://one:8000', prices: {currency: EUR, input: 0.5, output: 2, request: 1}}"
    (tmp_path / "models.yaml").write_text(gateway)
    path = tmp_path / "input.jsonl"
    path.write_text(LINE)
    registry = {"BATCHWRIGHT_REGISTRY": str(tmp_path / "models.yaml")}
    shown = cli.run("validate", str(path), "--estimate", "--json", **registry)
    [model] = json.loads(shown.stdout)["estimate"]["models"]
    assert (model["model"], model["cost"]["at_most"]) == ("gpt", "1.0000225")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0"),
        ("1234", "1,234"),
        ("1234.5", "1,234.5"),
        ("0.123456789", "0.123457"),
        ("0.000000376", "0.000000376"),
        ("12.000000000001", "12"),
    ],
)
def test_amounts_are_rounded_for_reading(amount: str, text: str) -> None:
    assert money_text(amount) == text


def test_validate_keeps_the_ids_of_lines_beyond_a_million_on_disk(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spool = tmp_path / "input.jsonl", tmp_path / "spool"
    path.write_text("".join(LINE.replace('"a"', f'"{number % 180}"') for number in range(200)))
    for options in ([], ["--estimate"]):
        files = small_memory(monkeypatch)
        checked = cli.run("validate", str(path), "--json", *options, BATCHWRIGHT_SPOOL_DIR=str(spool))
        assert json.loads(checked.stdout)["error_count"] == 20
        assert [(file.directory, file.file.closed) for file in files] == [(spool, True)]


def test_submit_names_an_object_without_an_upload(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, files = "s3://data/blue/in.jsonl", len(cli.api.database.rows.files)
    for option in ("--estimate", "--json"):
        refused = cli.run("submit", url, option)
        assert (refused.exit_code, "may not read from 's3://data/blue/in.jsonl'" in refused.stderr) == (
            3,
            True,
        )

    def may_read(settings: Settings, tenant: str, location: ObjectLocation) -> bool:
        return (tenant, location) == ("default", ObjectLocation("data", "blue/in.jsonl"))

    monkeypatch.setattr(Settings, "may_read", may_read)
    batch_id = cli.run("submit", url, "--window", "2h", "--idempotency-key", "one").stdout.strip()
    assert cli.run("submit", url, "--window", "2h", "--idempotency-key", "one").stdout.strip() == batch_id
    order = cli.row(batch_id).order
    assert (order.input_location, order.completion_window) == (url, "2h")
    assert len(cli.api.database.rows.files) == files
