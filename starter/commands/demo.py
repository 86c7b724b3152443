"""`batchwright demo`: a batch of 1,000 requests through the whole stack."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starter.client import Client, ClientError
from starter.commands.dev import settings_or_exit
from starter.output import stderr, stdout
from starter.stack.errors import StackError
from starter.stack.running import until_signal
from starter.stack.view import complain
from starter.views import Batch

if TYPE_CHECKING:
    from starter.stack.state import StackInfo
    from starter.stack.supervisor import Supervisor
    from starter.stack.trial import DemoResult

_FAILED = 1
_STARTING = "Starting PostgreSQL, Temporal, a simulated backend, API and worker ..."
_LOOK_SECONDS = 0.25
_LIMIT_SECONDS = 300.0
# Slow enough to be watched, fast enough not to be waited for.
_SIMULATOR = ("--latency-ms", "200", "--jitter", "0.4")


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stack running until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON line.")] = False,
) -> None:
    """Run a batch of 1,000 requests through the whole stack.

    The requests are for three models; the stack is started for them, on free ports.
    """
    # Imported when it is used: it brings Temporal's client, which every other command would wait for.
    from starter.stack.plan import DevOptions
    from starter.stack.supervisor import Supervisor

    folder = Path(tempfile.mkdtemp(prefix="batchwright-demo-"))
    settings = settings_or_exit()
    options = DevOptions(folder / "stack", settings, simulator_arguments=_SIMULATOR, auth="none")
    try:
        supervisor = Supervisor(options, _say)
        demonstration = Demonstration(folder, supervisor, json=json)
        asyncio.run(until_signal(demonstration.run(keep=keep), hurry=supervisor.hurry, say=_say))
    except StackError as error:
        complain(stderr(), error)
        raise typer.Exit(_FAILED) from None
    except ClientError as error:
        stderr().print(f"{error} The logs are in {folder}/stack/logs.", markup=False)
        raise typer.Exit(_FAILED) from None
    if not demonstration.has_succeeded:
        raise typer.Exit(_FAILED)


def _say(text: str) -> None:
    stderr().print(text, markup=False)


class Demonstration:
    """One batch, on a stack that runs for it."""

    def __init__(self, folder: Path, supervisor: "Supervisor", *, json: bool) -> None:
        self.has_succeeded = False
        self._folder = folder
        self._supervisor = supervisor
        self._json = json
        self._out = stdout()
        self._out.quiet = json

    async def run(self, *, keep: bool) -> None:
        from starter.stack.trial_view import look_around

        starting = self._out.status(_STARTING)
        if self._out.is_terminal:
            starting.start()
        else:
            self._out.print(_STARTING)
        try:
            async with self._supervisor:
                starting.stop()
                result = await self._batch(self._supervisor.info)
                if keep:
                    look_around(self._out, result, is_running=True)
                    await asyncio.Event().wait()
        finally:
            starting.stop()
        look_around(self._out, result, is_running=False)

    async def _batch(self, stack: "StackInfo") -> "DemoResult":
        from starter.stack import trial
        from starter.stack.trial_view import announce, conclude

        began = time.monotonic()
        with Client(stack.api) as client:
            batch, file = await asyncio.to_thread(trial.submit, client, self._folder)
            ui = f"{stack.ui}/namespaces/{stack.namespace}/workflows/{batch.id}"
            announce(self._out, batch, ui)
            batch = await self._until_ended(client, batch, began + _LIMIT_SECONDS)
            seconds = time.monotonic() - began
            output, errors = self._folder / "output.jsonl", self._folder / "errors.jsonl"
            await asyncio.to_thread(trial.fetch, client, batch.output_file_id, output)
            await asyncio.to_thread(trial.fetch, client, batch.error_file_id, errors)
        self.has_succeeded = trial.is_as_expected(batch, output, errors)
        result = trial.DemoResult(
            batch=batch,
            as_expected=self.has_succeeded,
            seconds=round(seconds, 1),
            ui=ui,
            data=self._folder,
            input_file=file,
            output_file=output,
            error_file=errors,
        )
        conclude(self._out, result)
        if self._json:
            print(result.model_dump_json(), flush=True)
        return result

    async def _until_ended(self, client: Client, batch: Batch, end: float) -> Batch:
        from starter.stack.trial_view import Bars, Reasons

        bars, reasons = Bars(self._out, hidden=self._json), Reasons()
        with bars.progress:
            while not batch.status.is_terminal:
                if time.monotonic() > end:
                    raise ClientError(f"{batch.id} is still {batch.status.value} after {_LIMIT_SECONDS:g} s.")
                await asyncio.sleep(_LOOK_SECONDS)
                batch = await asyncio.to_thread(client.batch, batch.id)
                bars.show(batch)
                for why in reasons.to_tell(batch, time.monotonic()):
                    _say(f"It waits: {why}")
        return batch
