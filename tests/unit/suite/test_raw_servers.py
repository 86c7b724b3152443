"""The tests' servers leave nothing open. Otherwise a warning of the garbage collector fails a later test."""

import asyncio
import gc
import socket
from contextlib import suppress

from tests.fakes.raw_servers import served


async def test_connections_that_are_just_being_opened_are_closed() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    gc.collect()
    for rounds in range(5):
        async with served(silent) as target:
            caller = socket.create_connection((target.origin.host, target.origin.port))
            for _ in range(rounds):
                await asyncio.sleep(0)
        with caller:
            caller.settimeout(5)
            with suppress(ConnectionResetError):
                assert caller.recv(1) == b""
    gc.collect()
