"""Temporal servers as operators have them: bare, set up, or behind TLS and keys."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio.testing import WorkflowEnvironment

from batchwright.contracts.search import SEARCH_ATTRIBUTES
from batchwright.temporal import DATA_CONVERTER
from starter.stack.temporal import find_binary


@asynccontextmanager
async def cluster(*, is_set_up: bool = False) -> AsyncGenerator[str]:
    """Its address; with a namespace `default`, and our search attributes in it if it is set up."""
    environment = await WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType] - a generic without its argument
        dev_server_existing_path=str(find_binary()),
        dev_server_log_level="error",
        search_attributes=SEARCH_ATTRIBUTES if is_set_up else (),
    )
    async with environment:
        yield environment.client.service_client.config.target_host


@asynccontextmanager
async def server() -> AsyncGenerator[WorkflowEnvironment]:
    """A real one for our workflows, in this process: it is set up, and its client speaks as ours does."""
    environment = await WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType] - a generic without its argument
        dev_server_existing_path=str(find_binary()),
        data_converter=DATA_CONVERTER,
        search_attributes=list(SEARCH_ATTRIBUTES),
    )
    async with environment:
        yield environment
