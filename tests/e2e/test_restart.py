"""A stack that is stopped in mid-batch goes on with it when it is started again."""

from pathlib import Path

import pytest

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, dev

pytestmark = pytest.mark.e2e


async def test_a_stack_that_is_stopped_and_started_goes_on_where_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with dev(data=data) as stack:
        async with stack.client() as client:
            await stack.faults(model=MODELS[0], kind="slow", seconds=0.3, rate=1.0)
            lines = chat_lines(MODELS, each=100)
            batch = await submit(client, lines)
            await settled(client, batch.id, 40)
    with dev(data=data) as stack:
        async with stack.client() as client:
            done = await ended(client, batch.id)
            await check_conservation(client, done, lines)
    assert done.status == "completed"
