"""The tests' servers leave nothing open. Otherwise a warning of the garbage collector fails a later test."""

import asyncio
import gc
import socket
from contextlib import suppress

import pytest

from tests.fakes.raw_servers import served


@pytest.mark.parametrize("rounds", range(5))
async def test_a_connection_that_is_just_being_opened_is_closed(rounds: int) -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    gc.collect()
    async with served(silent) as target:
        caller = socket.create_connection((target.origin.host, target.origin.port))
        for _ in range(rounds):
            await asyncio.sleep(0)
    with caller:
        caller.settimeout(5)
        with suppress(ConnectionResetError):
            assert caller.recv(1) == b""
    gc.collect()
