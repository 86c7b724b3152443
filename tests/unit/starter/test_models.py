"""`batchwright models`: registers, shows, removes and reverts models. The list itself uses the database."""

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.api_objects.operator import ModelSettingsObject
from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.starter.operator_client import OperatorClient
from tests.unit.starter.cli import LISTING, Cli, run_now, served

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ONE, TWO = "http://one:8000", "http://two:8000"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_a_model_is_registered_shown_removed_and_reverted(cli: Cli) -> None:
    names = ("--alias", "gpt", "--weight", "2", "--weight", "1", "--upstream", "a", "--upstream", "b")
    registered = cli.run("models", "register", "org/new", "--backend", ONE, "--backend", TWO, *names)
    assert registered.exit_code == 0
    assert [line.split() for line in registered.stdout.splitlines()] == [
        ["model", "backend", "also", "falls", "back", "on", "from"],
        ["org/new", ONE, "x2", "as", "a", "gpt", "change"],
        [TWO, "as", "b"],
    ]
    shown = cli.run("models", "show", "org/new").stdout
    assert shown.startswith(registered.stdout)
    assert cli.run("models", "show", "gpt").stdout == shown
    assert cli.run("models", "list").stdout == registered.stdout
    removed = cli.run("models", "remove", "org/new")
    assert (removed.exit_code, removed.stdout) == (0, "")
    assert "Removed: org/new." in removed.stderr
    gone = cli.run("models", "show", "org/new")
    assert gone.exit_code == 3
    assert "batchwright models revert" in gone.stderr
    reverted = cli.run("models", "revert", "org/new")
    assert (reverted.exit_code, "Taken away" in reverted.stderr) == (0, False)


def test_reverting_an_unchanged_model_reports_that_nothing_was_reverted(cli: Cli) -> None:
    run_now(cli.api.database.models.replace_models(LISTING, ["llama"], datetime.now(UTC)))
    reverted = cli.run("models", "revert", "llama")
    assert reverted.exit_code == 0
    assert reverted.stderr == "llama was not changed at run time, so there is nothing to undo.\n"
    cli.run("models", "remove", "llama")
    assert "nothing was taken back" not in cli.run("models", "revert", "llama").stderr


def test_a_model_whose_backends_run_jobs_is_registered(cli: Cli) -> None:
    jobs = ("--kind", "poll", "--job", "poll_endpoint_template=/status/{id}", "--job", "poll_interval=3s")
    registered = cli.run("models", "register", "voice", "--backend", ONE, *jobs)
    assert registered.exit_code == 0
    assert registered.stdout.splitlines()[1].split() == ["voice", ONE, "change,", "poll"]
    refused = cli.run("models", "register", "other", "--backend", ONE, "--kind", "poll", "--job", "interval")
    assert refused.exit_code == 3
    assert "--job interval is not KEY=VALUE, with a key of `jobs` in the registry." in refused.stderr


def test_ignored_parts_of_a_registration_are_reported(cli: Cli) -> None:
    backend = BackendConfig(url=ONE, headers={"TraceState": "old=1"})
    changes = cli.api.database.model_changes
    old = ModelConfig(backends=[backend])
    run_now(changes.put("voice", old, datetime.now(UTC), lambda rows: None))
    shown = cli.run("models", "show", "voice")
    assert (shown.exit_code, shown.stdout.splitlines()[1].split()) == (0, ["voice", ONE, "change"])
    expected = "the trace context of its request: remove it; until then it is not sent"
    assert f"Ignored: the header 'TraceState' of the backend {ONE} of 'voice' would replace {expected}." in (
        " ".join(shown.stderr.split())
    )
    [problem] = json.loads(cli.run("models", "show", "voice", "--json").stdout)["problems"]
    assert problem.endswith(expected)


def test_json_output_is_the_response_of_the_api(cli: Cli) -> None:
    first = cli.run("models", "register", "a", "--backend", ONE, "--json")
    [model] = json.loads(first.stdout)["data"]
    assert (model["model"], model["source"]) == ("a", "change")
    assert model["backends"] == [{"url": ONE, "weight": 1.0, "model": None}]
    assert json.loads(cli.run("models", "list", "--json").stdout)["data"] == [model]
    detail = json.loads(cli.run("models", "show", "a", "--json").stdout)
    assert (detail["model"], detail["version"]) == ("a", model["version"])
    assert detail["settings"]["limits.in_flight"] == {"value": 10, "origin": "default"}
    found = json.loads(
        cli.run("models", "register", "b", "--backend", TWO, "--fallback", "a", "--json").stdout
    )
    assert found["data"][1]["fallbacks"] == ["a"]
    affine = ("--backend", ONE, "--backend", TWO, "--load-balancing", "prefix-affine")
    found = json.loads(cli.run("models", "register", "b", *affine, "--replace", "--json").stdout)
    assert found["data"][1]["load_balancing"] == "prefix-affine"
    reverted = json.loads(cli.run("models", "revert", "b", "--json").stdout)
    assert [entry["model"] for entry in reverted["data"]] == ["a"]
    assert json.loads(cli.run("models", "remove", "a", "--json").stdout)["removed"] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("register", "a"), "--backend"),
        (("register", "a", "--backend", "ftp://x"), "it must begin with http"),
        (("register", "a", "--backend", ONE, "--weight", "1", "--weight", "2"), "once for each --backend"),
        (
            ("register", "a", "--backend", ONE, "--upstream", "1", "--upstream", "2"),
            "once for each --backend",
        ),
        (("register", "a", "--backend", ONE, "--weight", "0"), "it must be more than 0"),
        (("register", "a", "--backend", ONE, "--fallback", "z"), "register it first"),
        (("register", "a", "--backend", ONE, "--retry", "max_backoff=soon"), "max_backoff"),
        (
            ("set", "nobody", "--load-balancing", "prefix-affine"),
            "There is no model nobody; `batchwright models` lists",
        ),
        (
            ("set", "nobody", "--add-backend", ONE),
            "There is no model nobody; `batchwright models` lists them.",
        ),
        (("set", "a"), "give at least one option, such as --limit in_flight=8"),
        (("set", "a", "--key", "gateway"), "Give --key with --add-backend"),
        (("set", "a", "--priority", "2"), "Give --priority with --add-backend"),
        (("set", "a", "--weight", "2"), "Give --weight once for each --add-backend"),
        (("set", "a", "--limit", "8"), "--limit 8 is not KEY=VALUE"),
        (("remove", "nobody"), "There is no model nobody; `batchwright models` lists them."),
        (("revert", "nobody"), "There is no model nobody; `batchwright models` lists them."),
        (("show", "nobody"), "There is no model nobody"),
    ],
)
def test_wrong_usage_is_reported_in_one_sentence(cli: Cli, arguments: tuple[str, ...], expected: str) -> None:
    refused = cli.run("models", *arguments)
    assert refused.exit_code == 3
    assert expected in refused.stderr
    assert "Traceback" not in refused.stderr


_COMMANDS = [("list",), ("show",), ("register",), ("set",), ("remove",), ("revert",)]


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = [("models", *name) for name in ((), *_COMMANDS)]
    shown = "".join(cli.run(*command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## models\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}


def test_options_have_the_names_of_the_registry_fields(cli: Cli) -> None:
    expected = ("--limit", "in_flight=8", "--retry", "max_attempts=3", "--retry", "max_backoff=5m")
    registered = cli.run(
        "models", "register", "a", "--backend", ONE, "--load-balancing", "prefix-affine", *expected
    )
    assert registered.exit_code == 0
    refused = cli.run("models", "register", "b", "--backend", ONE, "--limit", "in_flight=none")
    assert refused.exit_code != 0
    assert "limits.in_flight" in refused.stderr
    assert cli.run("models", "register", "a", "--backend", ONE, "--retry", "5").exit_code != 0
    unknown = cli.run("models", "register", "b", "--backend", ONE, "--key", "gateway")
    assert "api_key_name" in unknown.stderr


def test_a_reserved_callback_header_is_refused_with_the_remedy(cli: Cli) -> None:
    job = ("--kind", "callback", "--job", "callback_header=traceparent")
    refused = cli.run("models", "register", "voice", "--backend", ONE, *job)
    assert refused.exit_code == 3
    expected = " ".join(refused.stderr.split())
    assert (
        "the callback_header 'traceparent' of 'voice' would replace the trace context of its request"
        in expected
    )
    assert "choose another" in expected


def settings(cli: Cli, model: str) -> dict[str, list[str]]:
    """Return the value and the source of each setting that `models show` prints."""
    lines = [line.split() for line in cli.run("models", "show", model).stdout.splitlines()]
    return {words[0]: words[1:] for words in lines if len(words) > 1}


def test_backends_are_added_with_a_priority(cli: Cli) -> None:
    cli.run("models", "register", "a", "--backend", ONE, "--priority", "-7")
    assert settings(cli, "a")["priority"] == ["-7", "change"]
    cli.run("models", "set", "a", "--add-backend", TWO, "--priority", "0", "--remove-backend", ONE)
    assert settings(cli, "a")["priority"] == ["0", "change"]


def test_an_existing_model_is_replaced_only_on_request(cli: Cli) -> None:
    assert cli.run("models", "register", "a", "--backend", ONE, "--limit", "in_flight=8").exit_code == 0
    refused = cli.run("models", "register", "a", "--backend", TWO)
    assert refused.exit_code == 3
    assert "a exists already: `batchwright models set` changes some of its settings" in refused.stderr
    assert settings(cli, "a")["limits.in_flight"] == ["8", "change"]
    assert cli.run("models", "register", "a", "--backend", TWO, "--replace").exit_code == 0
    assert settings(cli, "a")["limits.in_flight"] == ["10", "default"]


def test_some_settings_are_changed_and_all_others_stay(cli: Cli) -> None:
    registered = ("--limit", "in_flight=8", "--retry", "max_attempts=3", "--alias", "gpt")
    cli.run("models", "register", "a", "--backend", ONE, "--weight", "2", "--upstream", "org/a", *registered)
    added = cli.run("models", "set", "a", "--add-backend", TWO, "--weight", "3")
    assert added.exit_code == 0
    found = settings(cli, "a")
    assert (found["limits.in_flight"], found["retries.max_attempts"]) == (["8", "change"], ["3", "change"])
    listed = json.loads(cli.run("models", "list", "--json").stdout)["data"][0]
    assert listed["backends"] == [
        {"url": ONE, "weight": 2.0, "model": "org/a"},
        {"url": TWO, "weight": 3.0, "model": None},
    ]
    assert listed["aliases"] == ["gpt"]
    limits = ("--limit", "capacity_fraction=0.5", "--limit", "inputs_per_request=16", "--reset", "retries")
    changed = cli.run(
        "models", "set", "a", "--remove-backend", f"{ONE}/v1", "--load-balancing", "prefix-affine", *limits
    )
    assert changed.exit_code == 0
    found = settings(cli, "a")
    assert found["limits.capacity_fraction"] == ["0.5", "change"]
    assert found["limits.inputs_per_request"] == ["16", "change"]
    assert found["limits.in_flight"] == ["8", "change"]
    assert found["retries.max_attempts"] == ["5", "default"]
    assert found["backend"] == [TWO, "change"]
    reset = cli.run("models", "set", "a", "--reset", "limits.in_flight", "--limit", "capacity_fraction=1")
    assert reset.exit_code == 0
    assert settings(cli, "a")["limits.in_flight"] == ["10", "default"]
    unknown = cli.run("models", "set", "a", "--remove-backend", ONE)
    assert unknown.exit_code == 3
    assert f"a has no backend {ONE}; it has {TWO}." in unknown.stderr


def test_a_list_of_backends_that_was_changed_meanwhile_is_not_overwritten(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.run("models", "register", "a", "--backend", ONE)
    read = OperatorClient.model

    def read_before_a_change(client: OperatorClient, model: str) -> ModelSettingsObject:
        found = read(client, model)
        client.set_model(model, {"backends": [{"url": ONE}, {"url": TWO}]}, None)
        return found

    monkeypatch.setattr(OperatorClient, "model", read_before_a_change)
    refused = cli.run("models", "set", "a", "--add-backend", "http://three")
    monkeypatch.undo()
    assert refused.exit_code == 3
    assert "was changed since you read it" in refused.stderr
    listed = json.loads(cli.run("models", "list", "--json").stdout)["data"][0]
    assert [backend["url"] for backend in listed["backends"]] == [ONE, TWO]
