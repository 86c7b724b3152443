"""`batchwright`: the command line, put together."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Never

import typer
from typer.core import TyperGroup

from batchwright.leaving import run_and_leave
from starter.later import Later

# Their options are the process's own, and so is their help.
_PASS_ON: Mapping[str, bool | list[str]] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
COMMANDS = (
    Later("submit", "submit:submit", "Upload FILE and make a batch of it."),
    Later("status", "batches:status", "Show one batch."),
    Later("watch", "watch:watch", "Show a batch's progress until it has ended."),
    Later("list", "batches:list_batches", "List batches, newest first."),
    Later("cancel", "batches:cancel", "Cancel a batch; what is settled by then is kept."),
    Later("pause", "batches:pause", "Hold a batch back."),
    Later("resume", "batches:resume", "Go on with a batch that is paused, or that ended early."),
    Later("retry", "batches:retry", "Make a batch of the lines that failed."),
    Later("dlq", "dlq:dlq", "Show, retry and delete lines that failed for good."),
    Later("results", "results:results", "Print a batch's output lines, in the order of its input."),
    Later("validate", "validate:validate", "Check FILE as a batch's input, offline."),
    Later("rates", "rates:rates", "Show or change the rates of the whole fleet."),
    Later("quotas", "quotas:quotas", "Show or change tenants' quotas and the models they may use."),
    Later("storage", "storage:storage", "Check the storage, or clear it of what crashes left."),
    Later("retention", "retention:retention", "Delete what is past its life, or show what would go."),
    Later("tenants", "tenants:tenants", "Make, show, disable and enable tenants."),
    Later("keys", "keys:keys", "Make, list, change and revoke API keys."),
    Later("users", "users:users", "Make and change users of tenants."),
    Later("organizations", "organizations:organizations", "Make and change organizations of tenants."),
    Later("dev", "dev:dev", "Run the whole stack here, in the foreground."),
    Later("demo", "demo:demo", "Run a batch of 1,000 requests through the whole stack."),
    Later("worker", "processes:worker", "Run a worker: workflows and activities.", _PASS_ON),
    Later("api", "processes:api", "Serve the HTTP API.", _PASS_ON),
    Later("simulator", "processes:simulator", "Serve a simulated backend.", _PASS_ON),
    Later("migrate", "processes:migrate", "Bring the database's tables up to date."),
    Later("audit", "audit:audit", "Compare rows, runs, files and counts."),
    Later("doctor", "doctor:doctor", "Check what Batchwright runs on."),
    Later("config", "config:config", "Show the settings."),
    Later("models", "models:models", "Show or change which models are served, and by whom."),
    Later("stats", "stats:stats", "Show what the fleet has sent, by backend and by model."),
    Later("workers", "fleet:workers", "List the worker processes that are alive."),
    Later("queues", "queues:queues", "Show what waits in Temporal's task queues."),
    Later("rollout", "rollout:rollout", "Show or change which build gets new batches."),
    Later("codec-server", "codec_server:codec_server", "Decrypt payloads for the Web UI."),
    Later("setup", "setup:setup", "Prepare what Batchwright runs on."),
)


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
        for command in COMMANDS:
            self.add_command(command)
        try:
            return super().main(args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        except SystemExit as end:
            if isinstance(end.__context__, typer.TyperException):
                raise SystemExit(_usage()) from None
            raise


def _usage() -> int:
    # Imported when it is used: the list of commands would wait for what prints batches.
    from starter.output import Exit

    return int(Exit.USAGE)


app = typer.Typer(
    name="batchwright",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(asked: bool) -> None:
    if asked:
        # Imported when it is used, as all that only one command needs.
        from importlib.metadata import version

        print(f"batchwright {version('batchwright')}")
        raise typer.Exit


@app.callback()
def batchwright(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print it and exit.")
    ] = False,
) -> None:
    """OpenAI-compatible batches against any OpenAI-compatible backend."""


def main() -> Never:
    run_and_leave(lambda: app(prog_name="batchwright"))


if __name__ == "__main__":
    main()
