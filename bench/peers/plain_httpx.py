"""Alternative to Batchwright: a simple loop with httpx and its default limits."""

import asyncio
import json
from collections.abc import Iterator
from typing import TextIO

import httpx

from bench.peers.harness import PeerJob, run


async def _send_all(job: PeerJob) -> int:
    with job.path.open() as lines, job.out.open("a") as out:
        bodies = (json.loads(line)["body"] for line in lines)
        async with httpx.AsyncClient(base_url=job.url, timeout=60.0, trust_env=False) as client:
            return sum(await asyncio.gather(*(_send(client, bodies, out) for _ in range(job.in_flight))))


async def _send(client: httpx.AsyncClient, bodies: Iterator[object], out: TextIO) -> int:
    sent = 0
    for body in bodies:
        answer = await client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        out.write(json.dumps(answer.json()) + "\n")
        sent += 1
    return sent


if __name__ == "__main__":
    run(lambda job: asyncio.run(_send_all(job)))
