"""The yardstick: a client loop that sends the same requests and keeps nothing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import psutil
import uvloop

from bench.results import Measured

_MIB = 1024 * 1024


class _Line(msgspec.Struct):
    body: msgspec.Raw


def measure(simulator: str, path: Path, in_flight: int) -> Measured:
    """In a process of its own, whose CPU time and memory are the loop's and nothing else's."""
    command = [sys.executable, "-m", "bench.bare", simulator, str(path), str(in_flight)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(answer, type=Measured)


async def _send_all(simulator: str, path: Path, in_flight: int) -> Measured:
    lines = [bytes(msgspec.json.decode(line, type=_Line).body) for line in path.open("rb")]
    process = psutil.Process()
    before, started = process.cpu_times(), time.perf_counter()
    remaining = iter(lines)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"{simulator}/v1/chat/completions"
        await asyncio.gather(*(_send(session, url, remaining) for _ in range(in_flight)))
    seconds, after = time.perf_counter() - started, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Measured(len(lines), seconds, cpu, process.memory_info().rss / _MIB)


async def _send(session: aiohttp.ClientSession, url: str, bodies: Iterator[bytes]) -> None:
    headers = {"content-type": "application/json"}
    for body in bodies:
        async with session.post(url, data=body, headers=headers) as answer:
            await answer.read()
            answer.raise_for_status()


if __name__ == "__main__":
    measured = uvloop.run(_send_all(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
    sys.stdout.buffer.write(msgspec.json.encode(measured))
