"""Main function of the worker process. It reads options and settings, and runs the worker."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Never

import uvloop

from batchwright import settings as settings_module
from batchwright.activities import memory
from batchwright.process_exit import run_and_exit
from batchwright.settings.unknown_variables import warn_about_unknown_variables
from batchwright.storage.base import StorageError
from batchwright.telemetry.logging import configure_logging
from batchwright.worker.process import STARTUP_ERRORS, serve
from batchwright.worker.roles import Role, parse_roles
from batchwright.worker.wiring import deployment_config

logger = logging.getLogger(__name__)


class WorkerOptions(argparse.Namespace):
    roles: str
    models: str


def main(options: WorkerOptions) -> int:
    """Run the worker until it is stopped, and return the exit code of the process.

    The exit code is 0 after the current work was finished or returned. It is 1 if a dependency is unavailable
    or the worker failed, and 2 if a setting or a role is wrong.
    """
    try:
        settings = settings_module.load()
        deployment_config(settings)
        roles = parse_roles(options.roles)
        settings_module.require_backends(settings)
    except (settings_module.SettingsError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    configure_logging(settings)
    warn_about_unknown_variables()
    models = [name for name in options.models.split(",") if name]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, roles, models))
    except settings_module.SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except (*STARTUP_ERRORS, StorageError) as error:
        print(error, file=sys.stderr)
        return 1
    except Exception:  # the edge of the process: a poller or background task failed
        logger.exception("the worker failed")
        return 1
    return 0


def parse_options(arguments: Sequence[str] | None = None) -> WorkerOptions:
    """Parse the command line. Raises SystemExit for an invalid argument and for `--help`.

    Args:
        arguments: the arguments to parse; None for the arguments of this process.
    """
    parser = argparse.ArgumentParser(prog="batchwright worker", description="Runs batches: polls Temporal.")
    parser.add_argument("--roles", default=",".join(Role), help="some of: %(default)s (default: all)")
    parser.add_argument("--models", default="", help="models to serve, separated by commas (default: all)")
    return parser.parse_args(arguments, WorkerOptions())


def run() -> Never:
    """Parse the options of the process, run `main`, and end the process with the code that `main` returns."""
    options = parse_options()
    memory.return_large_blocks(memory.glibc_malloc())
    run_and_exit(lambda: main(options))
