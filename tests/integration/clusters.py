"""Temporal servers as operators have them: bare, set up, or behind TLS and keys."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from batchwright.contracts.search import SEARCH_ATTRIBUTES
from batchwright.temporal import DATA_CONVERTER
from starter.stack.ports import free_port
from starter.stack.temporal import find_binary

# The SDK's own five seconds are too few on a busy machine.
START_TIME = timedelta(minutes=4)


async def started(
    *arguments: str, is_set_up: bool = False, data_converter: DataConverter = DataConverter.default
) -> WorkflowEnvironment:
    """A real server with a namespace `default`, until the environment is left.

    Its port is ours: one that the SDK chooses may become an outgoing connection's before the server has it.
    """
    return await WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType] - a generic without its argument
        port=free_port(),
        data_converter=data_converter,
        search_attributes=SEARCH_ATTRIBUTES if is_set_up else (),
        dev_server_existing_path=str(find_binary()),
        dev_server_log_level="error",
        dev_server_extra_args=arguments,
        dev_server_startup_timeout=START_TIME,
    )


@asynccontextmanager
async def cluster(*arguments: str, is_set_up: bool = False) -> AsyncGenerator[str]:
    """Its address; with a namespace `default`, and our search attributes in it if it is set up."""
    async with await started(*arguments, is_set_up=is_set_up) as environment:
        yield environment.client.service_client.config.target_host


@asynccontextmanager
async def server() -> AsyncGenerator[WorkflowEnvironment]:
    """A real one for our workflows, in this process: it is set up, and its client speaks as ours does."""
    async with await started(is_set_up=True, data_converter=DATA_CONVERTER) as environment:
        yield environment
