"""`batchwright` as a process."""

import asyncio
import os
import sys
from typing import NamedTuple


class Ended(NamedTuple):
    code: int
    said: list[str]  # lines of stdout
    complained: str


async def batchwright(*arguments: str, **settings: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "starter", *arguments),
        env={
            **os.environ,
            "COLUMNS": "80",
            **{f"BATCHWRIGHT_{name.upper()}": value for name, value in settings.items()},
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, said.decode().splitlines(), complained.decode())
