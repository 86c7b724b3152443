"""What jobs and budgets leave behind: jobs that end, are lost, are told of; lines that are refused."""

from openai import AsyncOpenAI

from tests.clients import http_client
from tests.e2e.batches import chat_lines, ended, submit, until
from tests.e2e.stack import Stack

BUDGETED = "budgeted"
_LOST, _POLLED, _CALLED = "lost-jobs", "polled-jobs", "called-jobs"


async def leave_jobs(stack: Stack, client: AsyncOpenAI, upstream: str) -> None:
    """A batch of jobs that have ended, and one whose backend tells nothing of them, still in progress."""
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


async def leave_refusals(stack: Stack, upstream: str) -> None:
    """A tenant that has used up its budget, and its organization a part of another."""
    quotas = {"tenant": BUDGETED, "tokens_per_day": 1}
    async with http_client() as http:
        (await http.put(f"{stack.now.api}/admin/quotas", json=quotas)).raise_for_status()
        group = {"tenants": [BUDGETED], "tokens_per_day": 1_000_000}
        (await http.put(f"{stack.now.api}/admin/organizations/group", json=group)).raise_for_status()
    async with stack.client(BUDGETED) as client:

        async def is_refused() -> bool:
            batch = await submit(client, chat_lines([upstream], each=20))
            counts = (await ended(client, batch.id)).request_counts
            return counts is not None and counts.failed > 0

        await until(is_refused)  # workers follow within seconds


async def _register(
    stack: Stack, client: AsyncOpenAI, model: str, upstream: str, kind: str, jobs: dict[str, object]
) -> None:
    """Served once this returns."""
    backends = [{"url": f"{stack.simulator}/jobs", "model": upstream}]
    config = {"backends": backends, "kind": kind, "jobs": jobs}
    async with http_client() as http:
        (await http.put(f"{stack.now.api}/admin/models/{model}", json=config)).raise_for_status()

    async def is_served() -> bool:
        return model in {found.id async for found in client.models.list()}

    await until(is_served)
