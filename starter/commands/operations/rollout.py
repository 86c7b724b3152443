"""`batchwright rollout`: shows and changes which build of the workers gets new batches.

A build is a version of the workers. The setting BATCHWRIGHT_BUILD_ID of a worker names its build.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import run_or_stop
from batchwright.starter.options import JsonLine, command_group, settings_or_stop
from batchwright.starter.output import (
    ExitCode,
    column_table,
    escaped,
    local_time,
    print_json,
    stderr,
    stdout,
    stop,
)
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import from_rpc_error
from batchwright.temporal.rollout import Build, RolloutRefused, list_builds, make_current

rollout = command_group("Show or change which build takes new batches.")
Deployment = Annotated[
    str | None,
    typer.Option(
        "--deployment", help="Name of the deployment. [BATCHWRIGHT_DEPLOYMENT_NAME]", show_default=False
    ),
]
_Result = TypeVar("_Result")


class BuildsOutput(BaseModel):
    deployment: str
    builds: Sequence[Build]


class BuildChange(BaseModel):
    deployment: str
    current: str
    before: str


@rollout.callback()
def commands() -> None:
    """Show or change which build takes new batches."""


@rollout.command("show")
def show(deployment: Deployment = None, json: JsonLine = False) -> None:
    """Show the builds, newest first, with their live batches.

    You can stop the workers of a build when it is no longer current and has no live batches.
    """
    settings, name = _named(deployment)
    found = _call_temporal(settings, lambda client: list_builds(client, name))
    if json:
        return print_json(BuildsOutput(deployment=name, builds=found))
    if not found:
        message = f"No worker of the deployment {name!r} has polled yet"
        return stderr().print(f"{message}: new batches wait for unversioned workers.", markup=False)
    table = column_table("build", "status", "since", "live batches", right=1)
    for each in found:
        since = local_time(each.current_since or each.created_at)
        table.add_row(escaped(each.build), each.status, since, f"{each.batches:,}")
    stdout().print(table)
    if not any(build.status == "current" for build in found):
        stderr().print("No build is current: new batches wait for unversioned workers.", markup=False)


@rollout.command("current")
def current(
    build: Annotated[
        str | None, typer.Argument(metavar="BUILD", help="BATCHWRIGHT_BUILD_ID of its workers.")
    ] = None,
    unversioned: Annotated[
        bool, typer.Option("--unversioned", help="Workers without a build take new batches.")
    ] = False,
    lacking_queues: Annotated[
        bool, typer.Option("--lacking-queues", help="Allow a build that polls fewer queues.")
    ] = False,
    deployment: Deployment = None,
    json: JsonLine = False,
) -> None:
    """Assign new batches to BUILD from now on.

    Live batches stay on their build. To go back, name the previous build.
    """
    if bool(build) == unversioned:
        stop("Give one BUILD, or --unversioned.")
    settings, name = _named(deployment)
    wanted = build or ""
    before = _call_temporal(
        settings, lambda client: make_current(client, name, wanted, lacking_queues=lacking_queues)
    )
    if json:
        return print_json(BuildChange(deployment=name, current=wanted, before=before))
    stdout().print(f"New batches go to {_worded(wanted)}, before to {_worded(before)}.", markup=False)


def _named(deployment: str | None) -> tuple[Settings, str]:
    settings = settings_or_stop()
    name = deployment or settings.deployment_name
    if not name:
        stop(
            "The deployment is unknown: give --deployment, or set BATCHWRIGHT_DEPLOYMENT_NAME as its workers."
        )
    return settings, name


def _call_temporal(settings: Settings, call: Callable[[Client], Awaitable[_Result]]) -> _Result:
    """Connect to Temporal, pass the client to `call`, and return the result of `call`.

    If the connection or `call` fails, end the command with a one-sentence error.
    """

    async def connected_call() -> _Result:
        try:
            return await call(await connect(settings))
        except RPCError as error:
            raise from_rpc_error(settings, error) from error

    try:
        return run_or_stop(connected_call(), TemporalUnavailable)
    except RolloutRefused as error:
        stop(str(error), ExitCode.FAILED)


def _worded(build: str) -> str:
    return f"build {build}" if build else "unversioned workers"
