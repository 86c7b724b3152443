"""`batchwright setup temporal`: what a namespace needs before its first batch."""

import typer
from pydantic import BaseModel

from batchwright.settings import Settings
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.setup import Step, set_up
from starter.operate.asking import answered
from starter.options import JsonLine, settings_or_stop
from starter.output import Exit, print_json

setup = typer.Typer(
    help="Prepare what Batchwright runs on.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Steps(BaseModel):
    steps: list[Step]


@setup.callback()
def prepare() -> None:
    """Prepare what Batchwright runs on. It changes nothing that is as it should be."""


@setup.command("temporal")
def temporal(json: JsonLine = False) -> None:
    """Make the namespace, its search attributes and schedules.

    Exits with 0 once all is there, whoever made it, and with 1 if something cannot be made from here.
    """
    settings = settings_or_stop()
    steps = answered(_set_up(settings, silent=json), TemporalUnavailable, code=Exit.FAILED)
    if json:
        print_json(Steps(steps=steps))


async def _set_up(settings: Settings, *, silent: bool) -> list[Step]:
    steps: list[Step] = []
    async for step in set_up(await connect(settings), settings):
        steps.append(step)
        if not silent:
            detail = f" ({step.detail})" if step.detail else ""
            print(f"{step.kind} {step.name}: {step.outcome}{detail}", flush=True)
    return steps
