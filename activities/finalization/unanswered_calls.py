"""Record answers for calls (single requests in a rolling batch) that have no answer when the batch ends."""

from collections.abc import Iterator
from itertools import chain, islice

from batchwright.activities.stored_results.input_order_index import ResultIndex, SelectedResults
from batchwright.activities.stored_results.result_spool import ResultSpool
from batchwright.contracts.calls import CallAnswer
from batchwright.contracts.temporal_payloads.batch import BatchOrder
from batchwright.database.tables.calls import CallsTable
from batchwright.rules.calls.call_results import answers_of

_ANSWERS_AT_ONCE = 100


async def answer_calls(
    calls: CallsTable,
    order: BatchOrder,
    spool: ResultSpool,
    index: ResultIndex,
    selected: SelectedResults,
) -> None:
    """Record an answer for each call of the batch that has no answer yet.

    A call is a single request that runs as a line of a batch. Workers record the answers of most calls when
    they store results. A call has no answer if the recording failed, or if the call was never sent.

    Raises:
        DatabaseUnavailable: the database does not respond.
    """
    unanswered = await calls.unanswered(order.tenant, order.batch_id)
    if not unanswered:
        return
    answers = _answers(index, selected, unanswered)
    while part := await spool.run_in_thread(lambda: list(islice(answers, _ANSWERS_AT_ONCE))):
        await calls.answer(order.tenant, part)


def _answers(
    index: ResultIndex, selected: SelectedResults, unanswered: frozenset[str]
) -> Iterator[CallAnswer]:
    for row in chain(selected.output, selected.error):
        [answer] = answers_of([index.line(row)])
        if answer.id in unanswered:
            yield answer
