"""`batchwright setup temporal`: prepares a Temporal namespace for its first batch."""

from pydantic import BaseModel

from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import run_or_stop
from batchwright.starter.options import JsonLine, command_group, settings_or_stop
from batchwright.starter.output import ExitCode, print_json
from batchwright.temporal import TemporalUnavailable, connect
from batchwright.temporal.namespace.setup import SetupStep, set_up

setup = command_group("Set up what Batchwright depends on.")


class SetupOutput(BaseModel):
    steps: list[SetupStep]


@setup.callback()
def prepare() -> None:
    """Set up what Batchwright depends on. Parts that are already correct are not changed."""


@setup.command("temporal")
def temporal(json: JsonLine = False) -> None:
    """Create the namespace, its search attributes and schedules.

    Exits with 0 if the namespace and all search attributes and schedules exist afterwards. Exits with 1 if
    the namespace, a search attribute or a schedule cannot be created.
    """
    settings = settings_or_stop()
    steps = run_or_stop(_set_up(settings, silent=json), TemporalUnavailable, code=ExitCode.FAILED)
    if json:
        print_json(SetupOutput(steps=steps))


async def _set_up(settings: Settings, *, silent: bool) -> list[SetupStep]:
    steps: list[SetupStep] = []
    async for step in set_up(await connect(settings), settings):
        steps.append(step)
        if not silent:
            detail = f" ({step.detail})" if step.detail else ""
            print(f"{step.kind} {step.name}: {step.outcome}{detail}", flush=True)
    return steps
