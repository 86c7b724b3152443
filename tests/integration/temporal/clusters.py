"""Starts Temporal servers for tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from batchwright.contracts.search_attributes import SEARCH_ATTRIBUTES
from batchwright.starter.embedded_stack.ports import free_port
from batchwright.starter.embedded_stack.temporal_server import find_binary
from batchwright.temporal import DATA_CONVERTER

# The SDK's default of five seconds is too short on a busy machine.
START_TIME = timedelta(minutes=4)


async def started(
    *arguments: str, is_set_up: bool = False, data_converter: DataConverter = DataConverter.default
) -> WorkflowEnvironment:
    """Start a Temporal server with the namespace `default`. It ends when the returned environment is closed.

    This function chooses the port. If the SDK chose it, an outgoing connection could take the port before the
    server does.

    Args:
        is_set_up: True to create Batchwright's search attributes.
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
    """Context manager that runs a Temporal server with the namespace `default`, and yields its address.

    Args:
        is_set_up: True to create Batchwright's search attributes.
    """
    async with await started(*arguments, is_set_up=is_set_up) as environment:
        yield environment.client.service_client.config.target_host


@asynccontextmanager
async def server() -> AsyncGenerator[WorkflowEnvironment]:
    """Context manager that runs a Temporal server that is set up for our workflows, and yields it.

    The server's client uses our data converter.
    """
    async with await started(is_set_up=True, data_converter=DATA_CONVERTER) as environment:
        yield environment
