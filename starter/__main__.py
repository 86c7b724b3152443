"""The `batchwright` command line: its list of commands, its version, and its exit code after usage errors."""

import errno
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Never

import typer
from typer._click import Context
from typer.core import TyperGroup

from batchwright.process_exit import collect_rarely, run_and_exit
from batchwright.starter.help_names import readable_error
from batchwright.starter.lazy_commands import LazyCommand

# These commands pass their options on to the process, which also prints the help.
_PASS_ON: Mapping[str, bool | list[str]] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
COMMANDS = (
    LazyCommand("submit", "batches.submit:submit", "Upload FILE and create a batch from it."),
    LazyCommand("status", "batches.control:status", "Show one batch."),
    LazyCommand("watch", "batches.watch:watch", "Show the progress of a batch until it has ended."),
    LazyCommand("list", "batches.control:list_batches", "List batches, newest first."),
    LazyCommand("cancel", "batches.control:cancel", "Cancel a batch; results so far are kept."),
    LazyCommand("pause", "batches.control:pause", "Pause a batch."),
    LazyCommand("resume", "batches.control:resume", "Resume a paused batch, or a batch that ended early."),
    LazyCommand("retry", "batches.control:retry", "Create a batch that retries the lines that failed."),
    LazyCommand("max-cost", "batches.control:max_cost", "Change the maximum cost of a batch in progress."),
    LazyCommand("delete", "batches.control:delete", "Delete a batch that has ended, and its files."),
    LazyCommand("dlq", "batches.dead_letters:dlq", "List, retry and delete dead letters."),
    LazyCommand("results", "batches.results:results", "Print the output lines of a batch in input order."),
    LazyCommand("validate", "batches.validate:validate", "Check FILE as the input of a batch, offline."),
    LazyCommand("render", "batches.render:render", "Make requests from TEMPLATE and the rows of TABLE."),
    LazyCommand("collect", "batches.collect:collect", "Join the results of batches to the rows of TABLE."),
    LazyCommand("folder", "batches.folder:folder", "Run each file that appears in DIR as a batch."),
    LazyCommand(
        "admin",
        "fleet.batches:admin",
        "Manage batches of all tenants, holds and the audit log.",
    ),
    LazyCommand("rates", "fleet.rates:rates", "Show or change the rate limits of the fleet."),
    LazyCommand("quotas", "tenants.quotas:quotas", "Show or change quotas, shares and models of tenants."),
    LazyCommand(
        "storage", "operations.storage:storage", "Check object storage, or sweep unfinished objects."
    ),
    LazyCommand(
        "retention", "operations.retention:retention", "Delete expired data, or show what would be deleted."
    ),
    LazyCommand("tenants", "tenants.tenants:tenants", "Create, show, disable and enable tenants."),
    LazyCommand("keys", "tenants.keys:keys", "Create, list, change and revoke API keys."),
    LazyCommand(
        "budget-groups",
        "tenants.budget_groups:budget_groups",
        "Create and change groups that share daily budgets.",
    ),
    LazyCommand("webhooks", "webhooks:webhooks", "Create and change webhooks, test them, list deliveries."),
    LazyCommand(
        "schedules",
        "schedules:schedules",
        "Create batches at regular times, as in cron.",
    ),
    LazyCommand("dev", "local.dev:dev", "Run the whole stack in the foreground."),
    LazyCommand("demo", "local.demo:demo", "Run a batch of 1,000 requests through the whole stack."),
    LazyCommand("worker", "local.processes:worker", "Run a worker: workflows and activities.", _PASS_ON),
    LazyCommand("api", "local.processes:api", "Serve the HTTP API.", _PASS_ON),
    LazyCommand("simulator", "local.processes:simulator", "Serve a simulated backend.", _PASS_ON),
    LazyCommand("migrate", "local.processes:migrate", "Apply database migrations."),
    LazyCommand(
        "consistency",
        "operations.consistency:consistency",
        "Find out where database, Temporal and files differ.",
    ),
    LazyCommand("doctor", "operations.doctor:doctor", "Check everything that Batchwright depends on."),
    LazyCommand("config", "operations.config:config", "Show the settings."),
    LazyCommand("models", "fleet.models:models", "Show or change models and their backends."),
    LazyCommand("stats", "fleet.stats:stats", "Show requests of the fleet by backend and by model."),
    LazyCommand("workers", "fleet.workers:workers", "List the running worker processes."),
    LazyCommand("queues", "fleet.queues:queues", "Show the backlog of Temporal task queues."),
    LazyCommand("rollout", "operations.rollout:rollout", "Show or change which build takes new batches."),
    LazyCommand("codec-server", "operations.codec_server:codec_server", "Decrypt payloads for the Web UI."),
    LazyCommand("setup", "operations.setup:setup", "Set up what Batchwright depends on."),
)


class Commands(TyperGroup):
    """The group of all `batchwright` commands. It exits with 3 after usage errors, such as an unknown option.

    Typer's own exit code for usage errors is 2. In `batchwright`, 2 means that a batch is not finished.
    """

    def invoke(self, ctx: Context) -> object:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = readable_error(error.message)
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: object,
    ) -> object:
        for command in COMMANDS:
            self.add_command(command)
        try:
            return super().main(args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        except SystemExit as end:
            if isinstance(end.__context__, typer.TyperException):
                raise SystemExit(_usage_code()) from None
            raise
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            print(f"The output or a file cannot be written: {error.strerror}.", file=sys.stderr)
            raise SystemExit(_usage_code()) from None


def _usage_code() -> int:
    # Imported here, because the list of commands must not wait for libraries that print batches.
    from batchwright.starter.output import ExitCode

    return int(ExitCode.USAGE)


app = typer.Typer(
    name="batchwright",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        # Imported here because only this option needs it.
        from importlib.metadata import version

        print(f"batchwright {version('batchwright')}")
        raise typer.Exit


@app.callback()
def batchwright(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Run OpenAI-compatible batches on any OpenAI-compatible backend."""


def main() -> Never:
    collect_rarely()
    run_and_exit(lambda: app(prog_name="batchwright"))


if __name__ == "__main__":
    main()
