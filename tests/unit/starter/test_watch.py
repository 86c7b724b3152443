"""watch: events, polls, progress bars and exit codes."""

import json
from collections.abc import Callable, Generator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from batchwright.api.services.batches import progress_events as batch_events
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import ModelCounts, StartFit, WindowFit
from batchwright.database.errors import DatabaseUnavailable
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.batches.watch import LiveProgress, TextProgress
from tests.unit.starter.cli import Cli, served

FAST = ("--interval", "0.05")


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def nothing() -> None:
    """Do nothing between two polls."""


def act_between_polls(
    monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]
) -> list[Callable[[], None]]:
    """Let `watch` poll the API. In each pause between two polls, call the next one of `steps` instead of
    sleeping.

    Return the list of the steps that were not called yet.
    """
    left = list(steps)

    def act(seconds: float) -> None:
        left.pop(0)()

    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)
    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", act)
    return left


def test_watch_stays_until_the_end(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    ended = cli.run("watch", batch_id, *FAST)
    assert (ended.exit_code, "completed" in ended.stdout) == (0, True)


def test_watch_survives_an_unavailable_api(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_events, "MAX_LISTENERS", 0)  # `watch` polls
    batch_id = cli.submitted(tmp_path).order.batch_id
    rows = cli.api.database.rows
    failures: list[Exception | None] = [DatabaseUnavailable("refused"), DatabaseUnavailable("refused"), None]

    def between_looks(seconds: float) -> None:
        rows.failing = None
        if len(failures) == 1:
            cli.end(batch_id)
        rows.failing = failures.pop(0)

    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", between_looks)
    assert cli.run("watch", batch_id).exit_code == 0
    assert failures == []


def test_watch_without_a_terminal_prints_each_change_in_a_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    act_between_polls(
        monkeypatch,
        nothing,
        lambda: cli.begin(row, ModelCounts(model="llama", lines=1)),
        nothing,
        lambda: cli.end(row.order.batch_id),
    )
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    assert [line.split(";")[0] for line in shown] == ["validating", "0 of 1 lines, in_progress"]


def test_watch_without_a_terminal_prints_each_error_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=9))
    act_between_polls(
        monkeypatch,
        lambda: cli.fails(row, "llama", 1, "http_400"),
        lambda: cli.fails(row, "llama", 2, "http_400"),
        lambda: cli.fails(row, "llama", 3, "http_404"),
        lambda: cli.end(row.order.batch_id),
    )
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    assert [line for line in shown if "e.g." in line] == [
        "failed: 1 line: http_400 (llama), e.g. 'c': why",
        "failed: 3 lines: http_404 (llama), e.g. 'c': why",
    ]


def act_after_each_state(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
    """Call the next one of `steps` each time `watch` has shown a state. Let the API poll often."""
    left, show = list(steps), TextProgress.show

    def show_and_act(progress: TextProgress, batch: BatchObject) -> None:
        show(progress, batch)
        if left:
            left.pop(0)()

    monkeypatch.setattr(TextProgress, "show", show_and_act)
    monkeypatch.setattr(batch_events, "POLL_SECONDS", 0.01)


def test_watch_shows_each_event_without_a_poll(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    act_after_each_state(
        monkeypatch,
        nothing,  # the state that `watch` reads first is the first event, too
        lambda: cli.begin(row, ModelCounts(model="llama", lines=9)),
        lambda: cli.fails(row, "llama", 2, "http_400"),
        lambda: cli.end(row.order.batch_id),
    )
    polls: list[str] = []
    monkeypatch.setattr("batchwright.starter.commands.batches.watch._poll", polls.append)
    shown = cli.run("watch", row.order.batch_id)
    assert [line.split(";")[0] for line in shown.stderr.splitlines()] == [
        "validating",
        "0 of 9 lines, in_progress",
        "2 of 9 lines, 2 failed, in_progress",
        "failed: 2 lines: http_400 (llama), e.g. 'c': why",
    ]
    assert (shown.exit_code, polls) == (0, [])


def test_watch_polls_once_after_a_cut_and_then_listens_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    streams: list[str] = []
    real = Client.events

    def cut_once(client: Client, batch_id: str) -> Generator[BatchObject]:
        streams.append(batch_id)
        for batch in real(client, batch_id):
            yield batch
            if len(streams) == 1:
                raise ClientError("cut", is_transient=True)

    monkeypatch.setattr(Client, "events", cut_once)
    # It shows the first state, the event before the cut, the poll, and the event of the second stream.
    act_after_each_state(monkeypatch, nothing, nothing, nothing, lambda: cli.end(row.order.batch_id))
    assert cli.run("watch", row.order.batch_id, *FAST).exit_code == 0
    assert len(streams) == 2


def test_watch_listens_again_after_an_outage_of_the_database(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    rows, real = cli.api.database.rows, Client.events
    streams: list[str] = []

    def in_an_outage_at_first(client: Client, batch_id: str) -> Generator[BatchObject]:
        streams.append(batch_id)
        rows.failing = DatabaseUnavailable("refused") if len(streams) == 1 else None
        yield from real(client, batch_id)

    def end_the_outage(seconds: float) -> None:
        rows.failing = None
        assert len(streams) == 1, "the stream is not opened again"

    monkeypatch.setattr(Client, "events", in_an_outage_at_first)
    monkeypatch.setattr("batchwright.starter.commands.batches.watch.time.sleep", end_the_outage)
    # It shows the first state, the poll, and the event of the second stream.
    act_after_each_state(monkeypatch, nothing, nothing, lambda: cli.end(row.order.batch_id))
    assert cli.run("watch", row.order.batch_id).exit_code == 0
    assert len(streams) == 2


def test_watch_polls_an_older_api_that_has_no_events(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    monkeypatch.setattr("batchwright.starter.client._EVENTS", "/x/older")
    steps = act_between_polls(monkeypatch, nothing, nothing, lambda: cli.end(row.order.batch_id))
    assert cli.run("watch", row.order.batch_id).exit_code == 0
    assert steps == []


def test_progress_bars_show_the_most_frequent_error_of_each_model(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=9), ModelCounts(model="qwen[7b]", lines=9))
    cli.fails(row, "qwen[7b]", 2, "http_404")
    board = LiveProgress()
    shown = json.loads(cli.run("status", row.order.batch_id, "--json").stdout)
    shown["x_batchwright"]["waiting"] = []  # it is waiting for a worker
    board.show(BatchObject.model_validate(shown))
    notes = [task.fields["note"] for task in board.bars.tasks]
    assert notes == ["[red]2 failed: http_404[/red]", "", "[red]2 failed: http_404[/red]"]


def test_progress_bars_stay_visible_on_a_narrow_terminal_while_models_wait(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama-3.1-8b", lines=1500))
    cli.fails(row, "llama-3.1-8b", 7, "invalid_response")
    shown = json.loads(cli.run("status", row.order.batch_id, "--json").stdout)
    reason = "the backend accepts no requests now: it could not be reached"
    waiting = [{"model": f"llama-{number}", "reason": reason, "since": 0} for number in (1, 2)]
    shown["x_batchwright"]["waiting"] = waiting
    board = LiveProgress()
    board.show(BatchObject.model_validate(shown))
    console = Console(width=80, record=True, file=StringIO())
    console.print(board)
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines if "7/1500" in line] == ["in_progress", "llama-3.1-8b"]
    text = " ".join(" ".join(lines).split())
    assert [f"waiting llama-{number}: {reason}" in text for number in (1, 2)] == [True, True]
    assert "…" not in text


def test_watch_without_a_terminal_prints_each_tenth_of_the_lines(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=100))
    act_between_polls(
        monkeypatch,
        lambda: cli.fails(row, "llama", 9, "http_400"),
        lambda: cli.fails(row, "llama", 12, "http_400"),
        lambda: cli.fails(row, "llama", 19, "http_400"),
        lambda: cli.fails(row, "llama", 35, "http_400"),
        lambda: cli.end(row.order.batch_id),
    )
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    assert [line.split(",")[0] for line in shown if "in_progress" in line] == [
        "0 of 100 lines",
        "12 of 100 lines",
        "35 of 100 lines",
    ]


def test_watch_without_a_terminal_prints_when_a_batch_no_longer_fits_its_window(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    cli.forecast(row, WindowFit.FITS)
    act_between_polls(
        monkeypatch,
        lambda: cli.forecast(row, WindowFit.FITS),
        lambda: cli.forecast(row, WindowFit.LATE),
        lambda: cli.end(row.order.batch_id),
    )
    shown = cli.run("watch", row.order.batch_id).stderr.splitlines()
    expected = [line.rsplit("; ", 1)[1] for line in shown]
    assert expected == [
        "done in 4 min (90 %: 10 h 5 min), fits the window, 12.5 lines/s, 3,000 lines ahead",
        "done in 4 min (90 %: 10 h 5 min), late, 12.5 lines/s, 3,000 lines ahead",
    ]


def test_status_and_watch_show_the_forecast_made_before_the_batch_began(cli: Cli, tmp_path: Path) -> None:
    row = cli.submitted(tmp_path)
    cli.forecast_start(row, StartFit.CANNOT)
    expected = "4 min (90 %: 10 h 5 min), cannot be done in the window, 3,000 lines ahead"
    assert expected in cli.run("status", row.order.batch_id).stdout
    cli.end(row.order.batch_id)
    assert f"at start {expected}" in " ".join(cli.run("watch", row.order.batch_id).stdout.split())


def test_watch_prints_the_forecast_made_before_the_batch_began_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.submitted(tmp_path)
    act_between_polls(
        monkeypatch,
        lambda: cli.forecast_start(row, StartFit.FITS),
        lambda: cli.begin(row, ModelCounts(model="llama", lines=1)),
        lambda: cli.end(row.order.batch_id),
    )
    shown = cli.run("watch", row.order.batch_id).stderr
    assert shown.count("forecast at the start: 4 min (90 %: 10 h 5 min), fits the window") == 1


def test_watch_as_json_prints_one_object(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id)
    assert json.loads(cli.run("watch", batch_id, "--json").stdout)["status"] == "completed"
