"""Terminal output of `batchwright demo`, at most 80 columns wide."""

import shlex

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.starter.batch_output import waiting_text
from batchwright.starter.embedded_stack.demo_batch import DemoResult, first_line
from batchwright.starter.output import program_name

_SHOWN_CHARACTERS = 300
_LASTING_SECONDS = 5.0


class ProgressBars:
    """The progress bars in the terminal, one for each model of the batch."""

    def __init__(self, console: Console, *, hidden: bool) -> None:
        columns = (
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
        )
        self.progress = Progress(*columns, console=console, disable=hidden)
        self._bars: dict[str, TaskID] = {}

    def show(self, batch: BatchObject) -> None:
        for part in batch.x_batchwright.models:
            bar = self._bars.get(part.model)
            if bar is None:
                bar = self.progress.add_task(part.model, total=part.lines, failed="")
                self._bars[part.model] = bar
            settled = part.lines if batch.status.is_terminal else part.completed + part.failed
            failed = f"[red]{part.failed} failed[/red]" if part.failed else ""
            self.progress.update(bar, completed=settled, failed=failed)


class LastingReasons:
    """A filter that selects which of a batch's waiting reasons are printed.

    If a reason lasts for 5 seconds, it is selected. Each reason is selected only once.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str | None, str], float] = {}
        self._reported: set[tuple[str | None, str]] = set()

    def new_reasons(self, batch: BatchObject, now: float) -> list[str]:
        """Return the texts of the reasons that have lasted 5 seconds. Leave out reasons returned before.

        Args:
            now: seconds of a monotonic clock.
        """
        waits = {(why.model, why.reason): why for why in batch.waiting}
        self._seen = {key: self._seen.get(key, now) for key in waits}
        lasting = [key for key, since in self._seen.items() if now - since >= _LASTING_SECONDS]
        new = [key for key in lasting if key not in self._reported]
        self._reported.update(new)
        return [waiting_text(waits[key]) for key in new]


def print_start(console: Console, batch: BatchObject, pages: str | None, ui: str) -> None:
    """Print the addresses where the user can watch the batch in a browser.

    They are the web page of the batch, if there is one, and Temporal's Web UI.
    """
    if pages:
        console.print("Watch it in a browser, while it runs:")
        console.print(Text(f"  {pages}/batches/{batch.id}"), soft_wrap=True)
    console.print(f"Batch [bold]{batch.id}[/bold]: 1,000 requests over three models,")
    console.print("some of them bad on purpose. Its workflow in the Temporal UI, while it runs:")
    console.print(Text(f"  {ui}"), soft_wrap=True)


def print_result(console: Console, result: DemoResult) -> None:
    counts = result.batch.request_counts
    colour = "green" if result.as_expected else "red"
    console.print(
        f"\n[bold {colour}]{result.batch.status.value}[/] in {result.seconds:.1f} s: "
        f"{counts.total:,} requests, {counts.completed:,} answered, {counts.failed:,} failed"
        f"{' as intended' if result.as_expected else '; this is not what was expected'}"
    )
    for name, file in (("output", result.output_file), ("error", result.error_file)):
        console.print(f"\nFirst {name} line:", style="dim")
        line = first_line(file)
        console.print(Text(line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]} ..."))
    console.print()
    for name, file in (
        ("input", result.input_file),
        ("output", result.output_file),
        ("errors", result.error_file),
    ):
        console.print(Text(f"{name:<8}{file}"), soft_wrap=True)


def print_next_steps(console: Console, result: DemoResult, *, is_running: bool) -> None:
    console.print()
    if is_running:
        if result.page:
            console.print(Text(f"Page:        {result.page}"), soft_wrap=True)
        console.print(Text(f"Temporal UI: {result.ui}"), soft_wrap=True)
        console.print("The stack keeps running. Ctrl-C stops it.")
        return
    console.print("To look around, in a browser, too, start the stack on this data again:")
    data, stack = (shlex.quote(str(path)) for path in (result.data, result.data / "stack"))
    console.print(Text(f"  {program_name()} dev --data {stack}"), soft_wrap=True)
    if result.page:
        console.print(
            Text(f"  http://127.0.0.1:8000{result.page[result.page.index('/ui/') :]}"), soft_wrap=True
        )
    console.print(
        Text(f"  http://127.0.0.1:8233{result.ui[result.ui.index('/namespaces') :]}"), soft_wrap=True
    )
    console.print(Text(f"  rm -r {data}   # deletes all data of the demo"), soft_wrap=True)
