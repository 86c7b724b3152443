"""Alternative to Batchwright: a script with the official OpenAI client, as many users write it.

It starts one task for each line. A semaphore limits the requests in flight.
"""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from openai import AsyncOpenAI

from bench.peers.harness import PeerJob, run

if TYPE_CHECKING:
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming


async def _send_all(job: PeerJob) -> int:
    permits = asyncio.Semaphore(job.in_flight)
    async with AsyncOpenAI(base_url=f"{job.url}/v1", api_key="none", max_retries=0) as client:
        with job.out.open("a") as out:
            bodies = _bodies(job.path)
            await asyncio.gather(*(_send(client, permits, body, out) for body in bodies))
    return len(bodies)


def _bodies(path: Path) -> "list[CompletionCreateParamsNonStreaming]":
    with path.open() as lines:
        return [json.loads(line)["body"] for line in lines]


async def _send(
    client: AsyncOpenAI, permits: asyncio.Semaphore, body: "CompletionCreateParamsNonStreaming", out: TextIO
) -> None:
    async with permits:
        answer = await client.chat.completions.create(**body)
        out.write(answer.model_dump_json() + "\n")


if __name__ == "__main__":
    run(lambda job: asyncio.run(_send_all(job)))
