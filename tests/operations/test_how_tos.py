"""Every how-to works if its commands are followed exactly."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from batchwright.rules.tenants.api_keys import parse_key
from tests.e2e.stack import Stack, dev
from tests.integration.starter.commands import batchwright
from tests.operations.guide import Block, environment, run
from tests.operations.how_tos import NOT_RUN, Followed, blocks, left_out, pages

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_LOOPBACK = {"BATCHWRIGHT_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]'}  # where the page's receiver is
_CANCELLED = """file = client.files.create(file=open("requests.jsonl", "rb"), purpose="batch")
first = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
client.batches.cancel(first.id)
while first.status != "cancelled":
    first = client.batches.retrieve(first.id)
"""
# The last one changes the models that all are served from.
FOLLOWED = [
    Followed("submit-a-batch.md"),
    Followed("find-batches.md"),
    Followed("follow-a-batch.md"),
    Followed("control-costs.md"),
    Followed("receive-webhooks.md"),
    Followed("use-the-anthropic-clients.md"),
    Followed("schedules.md"),
    Followed("compressed-files.md"),
    Followed("python-client.md"),
    Followed("send-single-calls.md"),
    Followed("tables.md"),
    Followed("use-a-folder.md"),
    Followed("run-with-compose.md"),
    Followed("deduplicate-requests.md"),
    Followed("authenticate.md", here={"https://batches.example.com/v1": "http://127.0.0.1:8000/v1"}),
    Followed("audit-log.md"),
    Followed("check-requests-with-hooks.md"),
    Followed(
        "connect-to-temporal.md",
        here={"temporal.example.com:7233": "$TEMPORAL_ADDRESS", "=batches\n": "=of-a-how-to\n"},
    ),
    Followed("encrypt-payloads.md", here={"/run/secrets/": "./"}),
    Followed("rerun-a-batch.md", python=_CANCELLED, is_held=True),
    Followed("keep-and-delete.md"),
    Followed("limit-rates.md"),
    Followed("limit-tenants.md"),
    Followed("daily-budgets.md"),
    Followed("store-in-s3.md"),
    Followed("use-job-backends.md"),
    Followed("send-headers-to-backends.md"),
    Followed("change-models-at-run-time.md"),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with dev(data=None, BATCHWRIGHT_PASS_HEADERS="X-Team, X-Cost-Centre", **_LOOPBACK) as stack:
        yield stack


async def a_key(stack: Stack, tenant: str) -> str:
    """Create a key, and return it in the form that commands accept."""
    await batchwright("tenants", "create", tenant, database_url=stack.now.postgres)
    created = await batchwright("keys", "create", tenant, database_url=stack.now.postgres)
    key = parse_key(created.stdout[0])
    assert key is not None, created.stderr
    return f"bw_{key.prefix}"


@pytest.mark.parametrize("followed", FOLLOWED, ids=lambda followed: followed.page)
async def test_the_blocks_of_a_how_to_run_one_after_another(
    stack: Stack, followed: Followed, tmp_path: Path
) -> None:
    here = {
        "http://127.0.0.1:8000": stack.now.api,
        "bw_k3v9x0q2m4tz": await a_key(stack, "blue"),
    }
    (tmp_path / "requests.jsonl").write_text(next(text for _, text in blocks("submit-a-batch.md")))
    script = Block(followed.page, followed.page, followed.script(here), needs_a_cluster=False)
    async with stack.backend.hold() if followed.is_held else nullcontext():
        await asyncio.to_thread(run, script, environment(stack.now), tmp_path)


def test_every_how_to_with_a_block_is_run() -> None:
    assert {page for page in pages() if any(blocks(page))} == {followed.page for followed in FOLLOWED}


def test_every_reason_not_to_run_a_block_is_used() -> None:
    assert set(NOT_RUN) == set[str]().union(*map(left_out, pages()))
