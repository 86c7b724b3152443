"""`batchwright rollout`: which build of the workers takes new batches, and what older ones still have."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel
from rich.table import Table
from temporalio.client import Client
from temporalio.service import RPCError

from batchwright.settings import Settings
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.errors import refused
from batchwright.temporal.rollout import Build, RolloutRefused, builds, make_current
from starter.operate.asking import answered
from starter.options import JsonLine, settings_or_stop
from starter.output import Exit, print_json, stderr, stdout, stop
from starter.tables import columns, local_time, plain

rollout = typer.Typer(
    help="Show or change which build gets new batches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Deployment = Annotated[
    str | None,
    typer.Option("--deployment", help="[BATCHWRIGHT_DEPLOYMENT_NAME]", show_default=False),
]
_Answer = TypeVar("_Answer")


class Builds(BaseModel):
    deployment: str
    builds: Sequence[Build]


class Changed(BaseModel):
    deployment: str
    current: str
    before: str


@rollout.callback()
def commands() -> None:
    """Show or change which build gets new batches."""


@rollout.command("show")
def show(deployment: Deployment = None, json: JsonLine = False) -> None:
    """Show the builds, newest first, with their live batches.

    The workers of a build may go once it is not current and has no batches.
    """
    settings, name = _named(deployment)
    found = _answered(settings, lambda client: builds(client, name))
    if json:
        return print_json(Builds(deployment=name, builds=found))
    if not found:
        told = f"No worker of the deployment {name!r} has polled yet"
        return stderr().print(f"{told}: new batches wait for unversioned workers.", markup=False)
    stdout().print(_table(found))
    if not any(build.status == "current" for build in found):
        stderr().print("No build is current: new batches wait for unversioned workers.", markup=False)


@rollout.command("current")
def current(
    build: Annotated[
        str | None, typer.Argument(metavar="BUILD", help="Its workers' BATCHWRIGHT_BUILD_ID.")
    ] = None,
    unversioned: Annotated[
        bool, typer.Option("--unversioned", help="No build: workers without one take new batches.")
    ] = False,
    lacking_queues: Annotated[
        bool, typer.Option("--lacking-queues", help="Even if it polls fewer queues than the current one.")
    ] = False,
    deployment: Deployment = None,
    json: JsonLine = False,
) -> None:
    """Give new batches to BUILD from now on.

    Live batches stay on the build that began them. To go back, name the build
    from before.
    """
    if bool(build) == unversioned:
        stop("Name one BUILD, or --unversioned.")
    settings, name = _named(deployment)
    wanted = build or ""
    before = _answered(
        settings, lambda client: make_current(client, name, wanted, lacking_queues=lacking_queues)
    )
    if json:
        return print_json(Changed(deployment=name, current=wanted, before=before))
    stdout().print(f"New batches go to {_worded(wanted)}, before to {_worded(before)}.", markup=False)


def _named(deployment: str | None) -> tuple[Settings, str]:
    settings = settings_or_stop()
    name = deployment or settings.deployment_name
    if not name:
        stop(
            "Which deployment? Give --deployment, or set BATCHWRIGHT_DEPLOYMENT_NAME as its workers have it."
        )
    return settings, name


def _answered(settings: Settings, ask: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
    """Ends the command with one sentence where there is no answer."""

    async def asked() -> _Answer:
        try:
            return await ask(await connect(settings))
        except RPCError as error:
            raise refused(settings, error) from error

    try:
        return answered(asked(), TemporalUnavailable)
    except RolloutRefused as error:
        stop(str(error), Exit.FAILED)


def _table(found: Sequence[Build]) -> Table:
    table = columns("build", "status", "since", "live batches", right=1)
    for each in found:
        since = local_time(each.current_since or each.created_at)
        table.add_row(plain(each.build), each.status, since, f"{each.batches:,}")
    return table


def _worded(build: str) -> str:
    return f"build {build}" if build else "unversioned workers"
