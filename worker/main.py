"""The worker's process, from its options to its exit code."""

import argparse
import asyncio
import gc
import logging
import sys
from collections.abc import Sequence
from typing import Never

import uvloop

from activities import memory
from batchwright import settings as knobs
from batchwright.leaving import run_and_leave
from batchwright.settings.misspelt import warn_of_misspelt
from batchwright.storage.base import StorageError
from batchwright.telemetry.logging import configure
from worker.process import STARTUP_ERRORS, serve
from worker.roles import Role, roles_of
from worker.versioning import deployment

logger = logging.getLogger(__name__)


class Options(argparse.Namespace):
    roles: str
    models: str


def main(options: Options) -> int:
    """Exit codes: 0 after a drain, 1 where something it needs is missing, 2 for a wrong setting or role."""
    try:
        settings = knobs.load()
        deployment(settings)
        roles = roles_of(options.roles)
    except (knobs.SettingsError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    configure(settings)
    warn_of_misspelt()
    models = [name for name in options.models.split(",") if name]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, roles, models))
    except knobs.SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except (*STARTUP_ERRORS, StorageError) as error:
        print(error, file=sys.stderr)
        return 1
    except Exception:  # the edge of the process: a worker or helper failed by itself
        logger.exception("the worker failed")
        return 1
    return 0


def options_of(arguments: Sequence[str] | None = None) -> Options:
    """Of this process, or as given. Raises SystemExit."""
    parser = argparse.ArgumentParser(prog="batchwright worker", description="Runs batches: polls Temporal.")
    parser.add_argument("--roles", default=",".join(Role), help="some of: %(default)s (default: all)")
    parser.add_argument("--models", default="", help="models to serve, by commas (default: all there are)")
    return parser.parse_args(arguments, Options())


def run() -> Never:
    """`main`, then the process's end."""
    options = options_of()
    # A request makes hundreds of short-lived objects and no cycles: the default collects every few requests.
    gc.set_threshold(50_000, 20, 100)
    memory.keep_large_pieces_apart(memory.of_this_process())
    run_and_leave(lambda: main(options))
