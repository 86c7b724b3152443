"""Alternative to Batchwright: LiteLLM's router. A semaphore limits the calls of `acompletion` in flight.

The Python interpreter that runs it needs the package litellm.
"""

import asyncio
import importlib
import json
import os
from typing import Any, Protocol, TextIO

from bench.peers.harness import PeerJob, run


class _Answer(Protocol):
    def model_dump_json(self) -> str: ...


class _Router(Protocol):
    async def acompletion(self, **request: object) -> _Answer: ...


async def _send_all(job: PeerJob) -> int:
    with job.path.open() as lines:
        bodies: list[dict[str, object]] = [json.loads(line)["body"] for line in lines]
    router = _router(job, {str(body["model"]) for body in bodies})
    permits = asyncio.Semaphore(job.in_flight)
    with job.out.open("a") as out:
        await asyncio.gather(*(_send(router, permits, body, out) for body in bodies))
    return len(bodies)


def _router(job: PeerJob, models: set[str]) -> _Router:
    litellm: Any = importlib.import_module("litellm")  # not among our dependencies
    deployments = [
        {
            "model_name": model,
            "litellm_params": {"model": f"openai/{model}", "api_base": f"{job.url}/v1", "api_key": "none"},
        }
        for model in models
    ]
    router: _Router = litellm.Router(model_list=deployments, num_retries=0)
    return router


async def _send(router: _Router, permits: asyncio.Semaphore, body: dict[str, object], out: TextIO) -> None:
    async with permits:
        answer = await router.acompletion(**body)
        out.write(answer.model_dump_json() + "\n")


if __name__ == "__main__":
    # Otherwise its import downloads prices.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    importlib.import_module("litellm")
    run(lambda job: asyncio.run(_send_all(job)))
