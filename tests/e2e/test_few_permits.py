"""A worker that may ask less at once than it serves models: none waits until another has no lines left."""

import pytest

from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS, dev

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_newcomer_with_another_model_is_answered_while_two_models_want_all_there_is() -> None:
    *busy, other = sorted(MODELS)
    with dev("--workers", "1", BATCHWRIGHT_GLOBAL_IN_FLIGHT="2") as stack:
        await stack.faults(kind="slow", seconds=0.5, rate=1.0)
        async with stack.client("busy") as first, stack.client("new") as second:
            long = await submit(first, chat_lines(busy, each=600))
            await settled(first, long.id, 4)
            lines = chat_lines([other], each=3)
            short = await ended(second, (await submit(second, lines)).id)
            await check_conservation(second, short, lines)
            meanwhile = await first.batches.retrieve(long.id)
            await first.batches.cancel(long.id)
    assert (short.status, short.error_file_id) == ("completed", None)
    assert meanwhile.status == "in_progress"
