"""`batchwright models`: registered, shown, taken away, reverted, refused; the list itself asks a database."""

import json
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batchwright.contracts.registry import BackendConfig, ModelConfig
from tests.unit.cli import LISTING, Cli, run_now, served

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ONE, TWO = "http://one:8000", "http://two:8000"


@pytest.fixture
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_a_model_is_registered_shown_taken_away_and_reverted(cli: Cli) -> None:
    names = ("--alias", "gpt", "--weight", "2", "--weight", "1", "--upstream", "a", "--upstream", "b")
    made = cli.run("models", "register", "org/new", "--backend", ONE, "--backend", TWO, *names)
    assert made.exit_code == 0
    assert [line.split() for line in made.stdout.splitlines()] == [
        ["model", "backend", "also", "falls", "back", "on", "from"],
        ["org/new", ONE, "x2", "as", "a", "gpt", "change"],
        [TWO, "as", "b"],
    ]
    assert cli.run("models", "show", "org/new").stdout == made.stdout
    assert cli.run("models", "show", "gpt").stdout == made.stdout
    removed = cli.run("models", "remove", "org/new")
    assert (removed.exit_code, removed.stdout) == (0, "")
    assert "Taken away: org/new." in removed.stderr
    gone = cli.run("models", "show", "org/new")
    assert gone.exit_code == 3
    assert "batchwright models revert" in gone.stderr
    reverted = cli.run("models", "revert", "org/new")
    assert (reverted.exit_code, "Taken away" in reverted.stderr) == (0, False)


def test_of_a_model_that_was_not_changed_nothing_is_taken_back_and_that_is_said(cli: Cli) -> None:
    run_now(cli.house.database.models.note(LISTING, ["llama"], datetime.now(UTC)))
    reverted = cli.run("models", "revert", "llama")
    assert reverted.exit_code == 0
    assert reverted.stderr == "llama was not changed at run time: nothing was taken back.\n"
    cli.run("models", "remove", "llama")
    assert "nothing was taken back" not in cli.run("models", "revert", "llama").stderr


def test_a_model_whose_backends_run_jobs_is_registered(cli: Cli) -> None:
    jobs = ("--kind", "poll", "--job", "poll_endpoint_template=/status/{id}", "--job", "poll_interval=3s")
    made = cli.run("models", "register", "voice", "--backend", ONE, *jobs)
    assert made.exit_code == 0
    assert made.stdout.splitlines()[1].split() == ["voice", ONE, "change,", "poll"]
    refused = cli.run("models", "register", "voice", "--backend", ONE, "--kind", "poll", "--job", "interval")
    assert refused.exit_code == 3
    assert "--job interval is not KEY=VALUE, such as poll_endpoint_template=/status/{id}." in refused.stderr


def test_what_of_a_registration_is_not_heeded_is_said(cli: Cli) -> None:
    backend = BackendConfig(url=ONE, headers={"TraceState": "old=1"})
    changes = cli.house.database.model_changes
    old = ModelConfig(backends=[backend])
    run_now(changes.put("voice", old, datetime.now(UTC), lambda rows: None))
    shown = cli.run("models", "show", "voice")
    assert (shown.exit_code, shown.stdout.splitlines()[1].split()) == (0, ["voice", ONE, "change"])
    said = "the trace of its request: take it away; until then it is not sent"
    assert f"Not heeded: the header 'TraceState' of the backend {ONE} of 'voice' would stand for {said}." in (
        " ".join(shown.stderr.split())
    )
    [problem] = json.loads(cli.run("models", "show", "voice", "--json").stdout)["problems"]
    assert problem.endswith(said)


def test_json_is_what_the_api_answers(cli: Cli) -> None:
    first = cli.run("models", "register", "a", "--backend", ONE, "--json")
    [model] = json.loads(first.stdout)["data"]
    assert (model["model"], model["source"]) == ("a", "change")
    assert model["backends"] == [{"url": ONE, "weight": 1.0, "model": None}]
    assert json.loads(cli.run("models", "show", "a", "--json").stdout) == model
    found = json.loads(
        cli.run("models", "register", "b", "--backend", TWO, "--fallback", "a", "--json").stdout
    )
    assert found["data"][1]["fallbacks"] == ["a"]
    hedged = ("--backend", ONE, "--backend", TWO, "--hedge-after", "90s")
    found = json.loads(cli.run("models", "register", "b", *hedged, "--json").stdout)
    assert found["data"][1]["hedge_after"] == 90.0
    reverted = json.loads(cli.run("models", "revert", "b", "--json").stdout)
    assert [entry["model"] for entry in reverted["data"]] == ["a"]
    assert json.loads(cli.run("models", "remove", "a", "--json").stdout)["removed"] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "said"),
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
        (("register", "a", "--backend", ONE, "--hedge-after", "9s"), "two backends, or else no hedge_after"),
        (("register", "a", "--backend", ONE, "--hedge-after", "soon"), "hedge_after"),
        (("remove", "nobody"), "There is no model nobody; `batchwright models` lists them."),
        (("revert", "nobody"), "There is no model nobody; `batchwright models` lists them."),
        (("show", "nobody"), "There is no model nobody"),
    ],
)
def test_wrong_use_is_one_sentence(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    refused = cli.run("models", *arguments)
    assert refused.exit_code == 3
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_option_is_documented_and_no_other(cli: Cli) -> None:
    commands = [("models", *name) for name in ((), ("show",), ("register",), ("remove",), ("revert",))]
    shown = "".join(cli.run(*command, "--help").stdout for command in commands)
    page = (REFERENCE / "cli.md").read_text().split("\n## models\n")[1].split("\n## ")[0]
    assert _options(page) == _options(shown)


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--help"}


def test_limits_retries_and_the_choice_are_given_as_the_registry_names_them(cli: Cli) -> None:
    said = ("--limit", "in_flight=8", "--retry", "max_attempts=3", "--retry", "max_backoff=5m")
    made = cli.run("models", "register", "a", "--backend", ONE, "--choice", "prefix-affine", *said)
    assert made.exit_code == 0
    refused = cli.run("models", "register", "a", "--backend", ONE, "--limit", "in_flight=none")
    assert refused.exit_code != 0
    assert "limits.in_flight" in refused.stderr
    assert cli.run("models", "register", "a", "--backend", ONE, "--retry", "5").exit_code != 0
    unknown = cli.run("models", "register", "a", "--backend", ONE, "--key", "gateway")
    assert "api_key_name" in unknown.stderr


def test_a_header_to_call_by_that_is_ours_is_refused_with_its_remedy(cli: Cli) -> None:
    job = ("--kind", "callback", "--job", "callback_header=traceparent")
    refused = cli.run("models", "register", "voice", "--backend", ONE, *job)
    assert refused.exit_code == 3
    said = " ".join(refused.stderr.split())
    assert "the callback_header 'traceparent' of 'voice' would stand for the trace of its request" in said
    assert "choose another" in said
