"""Builds the objects of /admin/batches, which show operators the batches of all tenants."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import (
    BatchCountsObject,
    OperatorBatch,
    OperatorBatchPage,
    TenantBatchCounts,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.tables.operations.operator_batches import BatchCount


def operator_batch(batch: BatchObject, tenant: str) -> OperatorBatch:
    return OperatorBatch(**dict(batch), tenant=tenant)


def operator_batch_page(data: Sequence[OperatorBatch], *, more: bool) -> OperatorBatchPage:
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return OperatorBatchPage(data=list(data), first_id=first, last_id=last, has_more=more)


def found_operator_page(data: Sequence[OperatorBatch], stopped_at: str | None) -> OperatorBatchPage:
    """Return one page of the batches that a search has found, for operators.

    A search stops after some seconds. So the last batch that it has examined may not be on the page.

    Args:
        stopped_at: id of the last batch that the search has examined; None if no pages follow. The page shows
            it as `last_id`, because the next page begins after this batch.
    """
    page = operator_batch_page(data, more=stopped_at is not None)
    return page.model_copy(update={"last_id": stopped_at or page.last_id})


def batch_counts(counts: Sequence[BatchCount], ended_since: datetime) -> BatchCountsObject:
    by_tenant: defaultdict[str, list[BatchCount]] = defaultdict(list)
    for count in counts:
        by_tenant[count.tenant].append(count)
    total = _of_tenant("", counts)
    return BatchCountsObject(
        statuses=total.statuses,
        oldest_created_at=total.oldest_created_at,
        at_risk=total.at_risk,
        late=total.late,
        ended_since=int(ended_since.timestamp()),
        tenants=[_of_tenant(name, by_tenant[name]) for name in sorted(by_tenant)],
    )


def _of_tenant(tenant: str, counts: Sequence[BatchCount]) -> TenantBatchCounts:
    statuses: Counter[BatchStatus] = Counter()
    for count in counts:
        statuses[count.status] += count.batches
    oldest = min((count.oldest for count in counts if count.oldest is not None), default=None)
    return TenantBatchCounts(
        tenant=tenant,
        statuses={status: statuses[status] for status in BatchStatus if statuses[status]},
        oldest_created_at=None if oldest is None else int(oldest.timestamp()),
        at_risk=sum(count.at_risk for count in counts),
        late=sum(count.late for count in counts),
    )
