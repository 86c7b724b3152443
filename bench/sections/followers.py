"""Section of the benchmark: how fast a batch is sent while clients stream its results, and without them."""

import asyncio

import httpx

from batchwright.starter.client import Client
from bench import batches
from bench.inputs import write_input
from bench.results import Figure, Target
from bench.section import Section, SectionOptions
from bench.stack import RunningStack, Simulator, running_stack, simulator, wait_until_quiet

_FOLLOWERS = 8  # greatest number for one tenant at one API process
_IN_FLIGHT, _LATENCY_MS = 64, 500  # the backend limits the rate, not this machine
_LINES = 1_500
_SECONDS, _ROUNDS = 38.0, 3


def measure(options: SectionOptions) -> list[Figure]:
    count = options.size(_LINES, 500)
    path = options.folder / "followers.jsonl"
    write_input(path, count)
    alone, followed = list[float](), list[float]()
    with (
        simulator("--latency-ms", str(_LATENCY_MS)) as backend,
        running_stack(options.folder / "followers", backend.url, in_flight=_IN_FLIGHT) as stack,
        Client(stack.api) as client,
    ):
        file_id = batches.upload(client, path)
        for number in options.turns(_SECONDS, _ROUNDS):
            # The order alternates, so that changes over time affect both measurements.
            for followers in (0, _FOLLOWERS) if number % 2 else (_FOLLOWERS, 0):
                rate = asyncio.run(_rate(stack, backend, file_id, count, followers))
                (followed if followers else alone).append(rate)
            options.report(f"round {number}: {alone[-1]:.0f} lines/s alone, {followed[-1]:.0f} followed")
    ratios = [one / other for one, other in zip(followed, alone, strict=True)]
    what = f"rate with {_FOLLOWERS} followers, as a share of the rate without"
    return [
        Figure("followers.rate_alone", "rate without followers", alone, "lines/s"),
        Figure("followers.rate_followed", f"rate with {_FOLLOWERS} followers", followed, "lines/s"),
        Figure("followers.ratio", what, ratios, "", Target(0.97, "at least")),
    ]


async def _rate(stack: RunningStack, backend: Simulator, file_id: str, count: int, followers: int) -> float:
    """Run a batch of the file while `followers` clients stream its results.

    Return the lines per second, from the first request to the last response.

    Raises:
        SystemExit: a follower did not receive all lines, or the batch did not complete all lines.
    """
    await asyncio.to_thread(wait_until_quiet, stack)
    backend.reset()
    with Client(stack.api) as client:
        batch = batches.create(client, file_id)
        following = [asyncio.create_task(_follow(stack, batch.id)) for _ in range(followers)]
        await asyncio.to_thread(batches.wait, client, batch.id, count)
        received = await asyncio.gather(*following)
    if any(lines != count for lines in received):
        raise SystemExit(f"the followers received {received} lines of {count}")
    return count / backend.ledger().send_seconds


async def _follow(stack: RunningStack, batch_id: str) -> int:
    """Stream the results of a batch from the API until the end of the batch. Return the number of lines.

    The API is asked not to compress the results.

    Raises:
        SystemExit: the API refused the request.
    """
    path, headers = f"/v1/batches/{batch_id}/x/results", {"Accept-Encoding": "identity"}
    async with (
        httpx.AsyncClient(base_url=stack.api, headers=headers, timeout=None, trust_env=False) as http,
        http.stream("GET", path, params={"follow": "true"}) as response,
    ):
        if response.is_error:
            raise SystemExit(f"the API refused a follower with status {response.status_code}")
        return sum([piece.count(b"\n") async for piece in response.aiter_bytes()])


SECTION = Section(
    "followers",
    "A batch whose results are followed",
    f"{_LINES:,} lines of 1 KB, every answer after {_LATENCY_MS} ms, {_IN_FLIGHT} in flight; the rate while "
    f"lines are sent. In turns without followers, and with {_FOLLOWERS} clients that stream the results "
    "of the batch until its end.",
    1.1,
    measure,
    on_the_page=False,
)
