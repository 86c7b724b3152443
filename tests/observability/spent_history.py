"""Causes events of jobs, fallback models and budgets for the dashboards and alerts."""

from collections.abc import Mapping

from openai import AsyncOpenAI

from batchwright.starter.embedded_stack.ports import free_port
from tests.clients import http_client
from tests.e2e.batches import chat_lines, ended, submit, until
from tests.e2e.stack import Stack

BUDGETED = "budgeted"
_LOST, _POLLED, _CALLED = "lost-jobs", "polled-jobs", "called-jobs"
_DOWN = "down"


async def leave_jobs(stack: Stack, client: AsyncOpenAI, upstream: str) -> None:
    """Complete a batch whose backend runs jobs. Leave another batch in progress, whose backend forgets its
    jobs.
    """
    jobs: dict[str, object] = {"poll_interval": 0.25}
    await _register(
        stack, client, _POLLED, upstream, "poll", {**jobs, "poll_endpoint_template": "/status/{id}"}
    )
    await _register(
        stack, client, _LOST, upstream, "poll", {**jobs, "poll_endpoint_template": "/nowhere/{id}"}
    )
    await _register(stack, client, _CALLED, upstream, "callback", jobs)
    done = await submit(client, chat_lines([_POLLED, _CALLED], each=20))
    assert (await ended(client, done.id)).status == "completed"
    await submit(client, chat_lines([_LOST], each=20))
    async with http_client() as http:
        answer = await http.post(f"{stack.now.api}/tasks/callback/a-strangers", json={})
    assert answer.status_code == 401


async def leave_fallbacks(stack: Stack, client: AsyncOpenAI, fallback: str) -> None:
    """Leave a batch in progress whose backend is unreachable. The model `fallback` answers its lines."""
    config = {"backends": [{"url": f"http://127.0.0.1:{free_port()}"}], "fallbacks": [fallback]}
    await _register_config(stack, client, _DOWN, config)
    await submit(client, chat_lines([_DOWN], each=4000))


async def leave_refusals(stack: Stack, upstream: str) -> None:
    """Let a tenant use up its token budget and a part of its organization's budget."""
    quotas = {"tenant": BUDGETED, "tokens_per_day": 1}
    async with http_client() as http:
        (await http.put(f"{stack.now.api}/admin/quotas", json=quotas)).raise_for_status()
        group = {"members": [BUDGETED], "tokens_per_day": 1_000_000}
        path = f"{stack.now.api}/admin/budget-groups/organization/group"
        (await http.put(path, json=group)).raise_for_status()
    async with stack.client(BUDGETED) as client:

        async def is_refused() -> bool:
            batch = await submit(client, chat_lines([upstream], each=20))
            counts = (await ended(client, batch.id)).request_counts
            return counts is not None and counts.failed > 0

        await until(is_refused)  # workers follow within seconds


async def _register(
    stack: Stack, client: AsyncOpenAI, model: str, upstream: str, kind: str, jobs: dict[str, object]
) -> None:
    """Register a model whose backend runs jobs, and wait until the model is served.

    Args:
        upstream: name of the model at the backend.
        kind: kind of job: `poll` or `callback`.
        jobs: settings of the jobs.
    """
    backends = [{"url": f"{stack.simulator}/jobs", "model": upstream}]
    await _register_config(stack, client, model, {"backends": backends, "kind": kind, "jobs": jobs})


async def _register_config(
    stack: Stack, client: AsyncOpenAI, model: str, config: Mapping[str, object]
) -> None:
    async with http_client() as http:
        (await http.put(f"{stack.now.api}/admin/models/{model}", json=config)).raise_for_status()

    async def is_served() -> bool:
        return model in {found.id async for found in client.models.list()}

    await until(is_served)
