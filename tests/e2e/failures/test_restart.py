"""A stack is stopped while a batch runs. After its next start, it continues the batch."""

from pathlib import Path

import pytest

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def test_a_stack_that_is_stopped_and_started_continues_its_batches(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with dev(data=data) as stack:
        async with stack.client() as client:
            await stack.faults(model=MODELS[0], kind="hold")  # the batch cannot end before the stack does
            lines = chat_lines(MODELS, each=100)
            batch = await submit(client, lines)
            await settled(client, batch.id, 40)
    with dev(data=data) as stack:
        async with stack.client() as client:
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
    assert done.status == "completed"
