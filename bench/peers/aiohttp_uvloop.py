"""Alternative to Batchwright: a script with aiohttp, uvloop and orjson, written for high speed.

An experienced user could write it.
"""

import asyncio
from collections.abc import Iterator
from typing import BinaryIO

import aiohttp
import orjson
import uvloop

from bench.peers.harness import PeerJob, run

_HEADERS = {"content-type": "application/json"}


async def _send_all(job: PeerJob) -> int:
    with job.path.open("rb") as lines, job.out.open("ab") as out:
        bodies = (orjson.dumps(orjson.loads(line)["body"]) for line in lines)
        connector = aiohttp.TCPConnector(limit=job.in_flight)
        async with aiohttp.ClientSession(job.url, connector=connector, headers=_HEADERS) as session:
            return sum(await asyncio.gather(*(_send(session, bodies, out) for _ in range(job.in_flight))))


async def _send(session: aiohttp.ClientSession, bodies: Iterator[bytes], out: BinaryIO) -> int:
    sent = 0
    for body in bodies:
        async with session.post("/v1/chat/completions", data=body) as answer:
            answer.raise_for_status()
            out.write(orjson.dumps(orjson.loads(await answer.read())) + b"\n")
        sent += 1
    return sent


if __name__ == "__main__":
    run(lambda job: uvloop.run(_send_all(job)))
