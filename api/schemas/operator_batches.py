"""Builds the objects of /admin/batches, which show operators the batches of all tenants."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.api_objects.operator import (
    BatchCountsObject,
    OperatorBatch,
    TenantBatchCounts,
)
from batchwright.contracts.terms import BatchStatus
from batchwright.database.tables.operations.operator_batches import BatchCount


def operator_batch(batch: BatchObject, tenant: str) -> OperatorBatch:
    return OperatorBatch(**dict(batch), tenant=tenant)


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
