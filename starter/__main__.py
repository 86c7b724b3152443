"""`batchwright`: the command line, put together."""

from collections.abc import Sequence

import typer
from typer.core import TyperGroup

from starter.commands.batches import cancel, list_batches, pause, resume, status
from starter.commands.demo import demo
from starter.commands.dev import dev
from starter.commands.processes import PASS_ON, api, migrate, simulator, worker
from starter.commands.rates import rates
from starter.commands.results import results
from starter.commands.submit import submit
from starter.commands.validate import validate
from starter.commands.watch import watch
from starter.output import Exit


class Commands(TyperGroup):
    """Exits with 3 where typer would with 2: that is what a batch which has not finished yet exits with."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: object,
    ) -> object:
        try:
            return super().main(args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        except SystemExit as end:
            if isinstance(end.__context__, typer.TyperException):
                raise SystemExit(int(Exit.USAGE)) from None
            raise


app = typer.Typer(
    name="batchwright",
    cls=Commands,
    help="OpenAI-compatible batches against any OpenAI-compatible backend.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (submit, status, watch):
    app.command()(command)
app.command("list")(list_batches)
for command in (cancel, pause, resume, results, validate):
    app.command()(command)
app.add_typer(rates, name="rates")
app.command()(dev)
app.command()(demo)
for process in (worker, api, simulator):
    app.command(context_settings=PASS_ON)(process)
app.command()(migrate)


def main() -> None:
    app(prog_name="batchwright")


if __name__ == "__main__":
    main()
