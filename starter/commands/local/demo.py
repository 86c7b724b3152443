"""`batchwright demo`: runs a batch of 1,000 requests through the whole stack."""

import asyncio
import shlex
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.client import Client
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.local.dev import settings_or_exit
from batchwright.starter.embedded_stack.errors import StackError
from batchwright.starter.embedded_stack.terminal import print_error, until_signal
from batchwright.starter.output import stderr, stdout

if TYPE_CHECKING:
    from batchwright.starter.embedded_stack.demo_batch import DemoResult
    from batchwright.starter.embedded_stack.directory import StackInfo
    from batchwright.starter.embedded_stack.supervisor import Supervisor

_FAILED = 1
_STARTING = "Starting PostgreSQL, Temporal, a simulated backend, API and worker ..."
_POLL_SECONDS = 0.25
_LIMIT_SECONDS = 300.0
# Slow enough to show progress, fast enough to end soon.
_SIMULATOR = ("--latency-ms", "200", "--jitter", "0.4")


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stack running until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
) -> None:
    """Run a batch of 1,000 requests through the whole stack.

    The requests are for three models. The stack is started on free ports.
    """
    # Imported here because it loads Temporal's client, which takes a second.
    from batchwright.starter.embedded_stack.service_commands import DevOptions
    from batchwright.starter.embedded_stack.supervisor import Supervisor

    settings = settings_or_exit()
    folder = Path(tempfile.mkdtemp(prefix="batchwright-demo-"))
    options = DevOptions(folder / "stack", settings, simulator_arguments=_SIMULATOR, auth="none")
    try:
        supervisor = Supervisor(options, _say)
        run = DemoRun(folder, supervisor, json=json)
        asyncio.run(until_signal(run.run(keep=keep), on_repeat=supervisor.kill, say=_say))
    except StackError as error:
        print_error(stderr(), error)
        raise typer.Exit(_FAILED) from None
    except ClientError as error:
        stderr().print(f"{error} The logs are in {folder}/stack/logs.", markup=False)
        raise typer.Exit(_FAILED) from None
    if not run.has_succeeded:
        raise typer.Exit(_FAILED)


def _say(text: str) -> None:
    stderr().print(text, markup=False)


class DemoRun:
    """A run of the demo, which starts a whole stack, runs the demo batch and prints its result."""

    def __init__(self, folder: Path, supervisor: "Supervisor", *, json: bool) -> None:
        self.has_succeeded = False
        self._folder = folder
        self._supervisor = supervisor
        self._json = json
        self._out = stdout()
        self._out.quiet = json

    async def run(self, *, keep: bool) -> None:
        from batchwright.starter.embedded_stack.demo_output import print_next_steps

        result = None
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
                    print_next_steps(self._out, result, is_running=True)
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            if result is None:
                folder = shlex.quote(str(self._folder))
                _say(f"The demo was stopped before its end. `rm -r {folder}` deletes its data.")
            else:
                print_next_steps(self._out, result, is_running=False)
            raise
        finally:
            starting.stop()
        print_next_steps(self._out, result, is_running=False)

    async def _batch(self, stack: "StackInfo") -> "DemoResult":
        from batchwright.starter.embedded_stack import demo_batch
        from batchwright.starter.embedded_stack.demo_output import print_result, print_start

        began = time.monotonic()
        with Client(stack.api) as client:
            batch, file = await asyncio.to_thread(demo_batch.submit_demo, client, self._folder)
            ui = f"{stack.ui}/namespaces/{stack.namespace}/workflows/{batch.id}"
            print_start(self._out, batch, stack.pages, ui)
            batch = await self._until_ended(client, batch, began + _LIMIT_SECONDS)
            seconds = time.monotonic() - began
            output, errors = self._folder / "output.jsonl", self._folder / "errors.jsonl"
            await asyncio.to_thread(demo_batch.download, client, batch.output_file_id, output)
            await asyncio.to_thread(demo_batch.download, client, batch.error_file_id, errors)
        self.has_succeeded = demo_batch.is_as_expected(batch, output, errors)
        result = demo_batch.DemoResult(
            batch=batch,
            as_expected=self.has_succeeded,
            seconds=round(seconds, 1),
            page=f"{stack.pages}/batches/{batch.id}" if stack.pages else None,
            ui=ui,
            data=self._folder,
            input_file=file,
            output_file=output,
            error_file=errors,
        )
        print_result(self._out, result)
        if self._json:
            print(result.model_dump_json(), flush=True)
        return result

    async def _until_ended(self, client: Client, batch: BatchObject, end: float) -> BatchObject:
        from batchwright.starter.embedded_stack.demo_output import LastingReasons, ProgressBars

        bars, reasons = ProgressBars(self._out, hidden=self._json), LastingReasons()
        with bars.progress:
            while not batch.status.is_terminal:
                if time.monotonic() > end:
                    raise ClientError(f"{batch.id} is still {batch.status.value} after {_LIMIT_SECONDS:g} s.")
                await asyncio.sleep(_POLL_SECONDS)
                batch = await asyncio.to_thread(client.batch, batch.id)
                bars.show(batch)
                for why in reasons.new_reasons(batch, time.monotonic()):
                    _say(f"The batch is waiting: {why}")
        return batch
