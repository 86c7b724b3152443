"""`batchwright schedules`: creates, changes, pauses and triggers schedules that create batches."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from batchwright.contracts.api_objects.schedules import ScheduleObject, ScheduleRunObject
from batchwright.rules.ids import is_file_id
from batchwright.rules.stored_objects.object_locations import SCHEME
from batchwright.starter.commands.batches.submit import (
    Deduplicate,
    Metadata,
    Priority,
    delete_unless_used,
    upload_input,
)
from batchwright.starter.options import (
    EndpointOption,
    Json,
    MaxCost,
    Tenant,
    Url,
    WindowOption,
    api_client,
    command_group,
    id_argument,
    key_value_pairs,
)
from batchwright.starter.output import (
    column_table,
    escaped,
    local_timestamp,
    print_json,
    property_table,
    stderr,
    stdout,
    stop,
)
from batchwright.starter.schedule_client import ScheduleClient

_LIMIT, _MAX_LIMIT = 20, 100
_SHOWN_TIMES = 5
schedules = command_group("Create batches at regular times, as in cron.")
Id = Annotated[
    str,
    id_argument("schedule", "schedule_...", "schedules list"),
]
TimeZone = Annotated[
    str | None,
    typer.Option(
        "--time-zone", metavar="NAME", help="Such as Europe/Berlin; by default UTC.", show_default=False
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="skip|buffer_one|buffer_all|cancel_other|allow_all",
        help="If the earlier batch has not ended when the next one is due; by default skip.",
        show_default=False,
    ),
]
Description = Annotated[
    str | None, typer.Option("--description", help="What it is for, in your words.", show_default=False)
]


@schedules.callback()
def commands() -> None:
    """Create batches at regular times, as in cron."""


@schedules.command("create")
def create(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Requests or s3://bucket/key as for submit, or the id of a file.",
            show_default=False,
        ),
    ],
    cron: Annotated[
        str,
        typer.Option(
            "--cron", metavar="CRON", help="Five fields; '0 2 * * *' is 02:00 daily.", show_default=False
        ),
    ],
    time_zone: TimeZone = None,
    overlap: Overlap = None,
    description: Description = None,
    endpoint: EndpointOption = "/v1/chat/completions",
    window: WindowOption = "24h",
    metadata: Metadata = None,
    deduplicate: Deduplicate = False,
    priority: Priority = None,
    max_cost: MaxCost = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Create a schedule whose batches have the requests of FILE."""
    extension = _given(deduplicate=deduplicate or None, priority=priority, max_cost=max_cost)
    batch: dict[str, object] = {
        "endpoint": endpoint,
        "completion_window": window,
        "metadata": key_value_pairs(metadata, "--metadata"),
    }
    batch |= {"x_batchwright": extension} if extension else {}
    body = {"cron": cron, **_given(time_zone=time_zone, overlap=overlap, description=description)}
    with api_client(url, tenant) as client:
        is_there = is_file_id(file) or file.startswith(SCHEME)
        uploaded = None if is_there else upload_input(client, Path(file), f"schedule-{uuid4().hex}")
        batch["input_file_id"] = file if uploaded is None else uploaded.id
        with nullcontext() if uploaded is None else delete_unless_used(client, uploaded):
            created = ScheduleClient(client).create({**body, "batch": batch})
    _print_schedule(created, json)


@schedules.command("list")
def list_schedules(
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MAX_LIMIT, help="Number of rows.")] = _LIMIT,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """List schedules, newest first."""
    with _client(url, tenant) as client:
        page = client.page(limit)
    if json:
        return print_json(page)
    if not page.data:
        stderr().print(
            "There is no schedule; `batchwright schedules create FILE --cron '0 2 * * *'` creates one."
        )
        return
    columns = ("id", "state", "cron", "time zone", "next", "last batch", "result")
    table = column_table(*columns, whole=["id", "state"])
    for one in page.data:
        last = one.runs[0] if one.runs else None
        table.add_row(
            one.id,
            _state(one),
            one.cron,
            one.time_zone,
            _time_with_zone(one.next_times[0]) if one.next_times else "",
            "" if last is None else last.batch_id or "",
            "" if last is None else _result(last),
        )
    stdout().print(table)


@schedules.command("show")
def show(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Show a schedule, its next times and its latest runs."""
    with _client(url, tenant) as client:
        _print_schedule(client.get(id), json)


@schedules.command("set")
def change(
    id: Id,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="CRON", help="Five fields.", show_default=False)
    ] = None,
    time_zone: TimeZone = None,
    overlap: Overlap = None,
    description: Description = None,
    json: Json = False,
    url: Url = None,
    tenant: Tenant = None,
) -> None:
    """Change some properties of a schedule, and keep all others.

    All later batches of the schedule run with the API key that this command uses.
    """
    changes = _given(cron=cron, time_zone=time_zone, overlap=overlap, description=description)
    if not changes:
        stop("There is nothing to change: give at least one option, such as --cron '0 3 * * *'.")
    with _client(url, tenant) as client:
        _print_schedule(client.change(id, changes), json)


@schedules.command("pause")
def pause(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Pause a schedule. Its running batches continue."""
    _perform(id, "pause", json, url, tenant)


@schedules.command("resume")
def resume(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Resume a paused schedule. Runs that were due during the pause are skipped."""
    _perform(id, "resume", json, url, tenant)


@schedules.command("trigger")
def trigger(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Create a batch of a schedule now, even if the schedule is paused."""
    _perform(id, "trigger", json, url, tenant)


@schedules.command("delete")
def delete(id: Id, json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """Delete a schedule. Its batches continue."""
    with _client(url, tenant) as client:
        deleted = client.delete(id)
    if json:
        return print_json(deleted)
    stderr().print(f"Deleted {deleted.id}.", markup=False)


@contextmanager
def _client(url: str | None, tenant: str | None) -> Generator[ScheduleClient]:
    with api_client(url, tenant) as client:
        yield ScheduleClient(client)


def _perform(id: str, action: str, json: bool, url: str | None, tenant: str | None) -> None:
    with _client(url, tenant) as client:
        _print_schedule(client.perform(id, action), json)


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _time_with_zone(seconds: int) -> str:
    """Return a Unix time as local time, with the name of the local time zone.

    The name is needed because the time zone of the schedule can be a different one.
    """
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def _state(schedule: ScheduleObject) -> str:
    return "paused" if schedule.paused else "active"


def _result(run: ScheduleRunObject) -> str:
    if run.error is not None:
        return escaped(f"not created: {run.error.message}")
    return "deleted" if run.status is None else run.status.value


def _print_schedule(schedule: ScheduleObject, json: bool) -> None:
    if json:
        return print_json(schedule)
    batch = schedule.batch
    metadata = ", ".join(f"{key}={value}" for key, value in (batch.metadata or {}).items())
    facts = [
        ("schedule", schedule.id),
        ("state", _state(schedule)),
        ("cron", schedule.cron),
        ("time zone", schedule.time_zone),
        ("overlap", schedule.overlap.value),
        ("description", escaped(schedule.description)),
        ("input", batch.input_file_id),
        ("endpoint", batch.endpoint),
        ("window", batch.completion_window),
        ("metadata", escaped(metadata)),
        ("created", local_timestamp(schedule.created_at)),
        ("skipped", str(schedule.skipped) if schedule.skipped else ""),
        *(("next", _time_with_zone(time)) for time in schedule.next_times[:_SHOWN_TIMES]),
        *(("run", f"{_time_with_zone(run.scheduled_at)}  {_run(run)}") for run in schedule.runs),
    ]
    table = property_table()
    for name, value in facts:
        if value:
            table.add_row(name, value)
    stdout().print(table)


def _run(run: ScheduleRunObject) -> str:
    return _result(run) if run.batch_id is None else f"{run.batch_id}  {_result(run)}"
