"""Compute how much work is done in total until one tenant, priority or batch has done its own work.

Tenants, priorities and batches are called owners here. Owners divide the capacity of a model by weight.
Example: two owners with equal weights have 10 and 15 lines. When the first owner has done its 10 lines, both
owners together have done 20 lines.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from batchwright.contracts.temporal_payloads.batch import DEFAULT_PRIORITY
from batchwright.rules.dispatch.batch_ranking import priority_weight

FOR_OTHERS = 0.2  # fraction of a priority's permits that does not go to its first batch


class Share(NamedTuple):
    """The work that one owner has to do, and its weight. An owner is a tenant, a priority or a batch.

    Owners divide the capacity of a model in proportion to their weights.
    """

    weight: float
    work: float


class SharedCapacity:
    """A capacity that several owners divide by weight until their work is done.

    An owner is a tenant, a priority or a batch. When one owner has no work left, the others divide its part
    of the capacity, so no capacity is idle.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        by_end = sorted(shares, key=lambda share: share.work / share.weight)
        self._ends = [share.work / share.weight for share in by_end]  # ascending
        self._work = [0.0, *accumulate(share.work for share in by_end)]
        self._weights = [0.0, *accumulate(share.weight for share in by_end)]

    def work_done_when(self, work: float, weight: float) -> float:
        """Return how much work all owners together do from now until one owner has done `work`.

        An owner is a tenant, a priority or a batch. Example: two owners with equal weights have 10 and 15
        lines. While the first owner does its 10 lines, both owners together do 20, so the result is 20.

        Args:
            work: work of one of the owners that divide the capacity.
            weight: weight of this owner.
        """
        end = work / weight
        ended = bisect_right(self._ends, end)
        return self._work[ended] + end * (self._weights[-1] - self._weights[ended])


class ModelOfBatch(NamedTuple):
    batch_id: str
    model: str


@dataclass(frozen=True)
class UnsettledWork:
    """The lines of one model in a live batch: how many have a result, and how many have none.

    Attributes:
        settled: number of lines with a result.
        left: number of lines without a result.
        began: when the first line could be sent, in seconds of the clock that `Forecaster.observe` uses.
        weight: weight of the batch's tenant.
        limited: True if the tenant has a rate limit or a limit of requests in flight, or if the batch's API
            key has a limit of requests in flight.
    """

    tenant: str
    batch_id: str
    model: str
    settled: int
    left: int
    began: float
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    limited: bool = False

    @property
    def key(self) -> ModelOfBatch:
        return ModelOfBatch(self.batch_id, self.model)


class WorkUntil:
    """The amount of work that all batches together do before the last line of one batch is sent.

    Tenants divide the capacity of a model by weight. The priorities of a tenant divide the tenant's part.
    Within a priority, the batch with the fewest lines left gets most of the capacity, and all other batches
    share a small rest.
    """

    def __init__(self, work: Sequence[UnsettledWork], queued: Mapping[ModelOfBatch, float]) -> None:
        totals: dict[tuple[str, int], float] = defaultdict(float)
        tenants: dict[str, list[Share]] = defaultdict(list)
        weights: dict[str, float] = {}
        self._in_priority: dict[ModelOfBatch, float] = {}  # work until a batch's last line
        for each in sorted(work, key=_place):
            totals[each.tenant, each.priority] += queued[each.key]
            self._in_priority[each.key] = totals[each.tenant, each.priority]
            weights[each.tenant] = each.weight
        self._if_first: dict[ModelOfBatch, float] = {}  # the same if the batch goes first
        for each in work:
            first, total = self._in_priority[each.key], totals[each.tenant, each.priority]
            self._in_priority[each.key] = min(first / (1 - FOR_OTHERS), total)
            self._if_first[each.key] = min(queued[each.key] / (1 - FOR_OTHERS), total)
        for (tenant, priority), amount in totals.items():
            tenants[tenant].append(Share(priority_weight(priority), amount))
        models = [
            Share(weights[tenant], sum(each.work for each in shares)) for tenant, shares in tenants.items()
        ]
        self._in_tenant = {tenant: SharedCapacity(shares) for tenant, shares in tenants.items()}
        self._in_model = SharedCapacity(models)

    def last_line_of(self, work: UnsettledWork) -> float:
        """Forecast how much work all tenants together do from now until this batch's last line is sent.

        The result is a number of average lines of the model, and includes the work of the batch itself.
        """
        return self._in_all(work, self._in_priority[work.key])

    def last_line_if_first(self, work: UnsettledWork) -> float:
        """Forecast, for the best case, how much work is done from now until this batch's last line is sent.

        In the best case, the batch sends its lines before all other batches of its tenant and priority. The
        result is a number of average lines of the model. It includes the work of all tenants and of the batch
        itself.
        """
        return self._in_all(work, self._if_first[work.key])

    def _in_all(self, work: UnsettledWork, in_priority: float) -> float:
        """Return how much work all tenants do while the batches of one priority do the work `in_priority`.

        These are all batches with the tenant and the priority of `work`. The result includes `in_priority`.
        Both amounts of work are numbers of average lines.
        """
        of_tenant = self._in_tenant[work.tenant].work_done_when(in_priority, priority_weight(work.priority))
        return self._in_model.work_done_when(of_tenant, work.weight)


def present_shares(work: Sequence[UnsettledWork]) -> dict[ModelOfBatch, float]:
    """Return the fraction of one model's capacity that each batch has at present.

    `work` contains the batches of this model. The fractions add up to 1.
    """
    weights = {each.tenant: each.weight for each in work}
    batches = Counter((each.tenant, each.priority) for each in work)
    priorities: dict[str, float] = defaultdict(float)
    for tenant, priority in batches:
        priorities[tenant] += priority_weight(priority)
    total, firsts = sum(weights.values()), set[tuple[str, int]]()
    shares: dict[ModelOfBatch, float] = {}
    for each in sorted(work, key=_place):
        group = each.tenant, each.priority
        part = FOR_OTHERS / batches[group] + (0.0 if group in firsts else 1 - FOR_OTHERS)
        firsts.add(group)
        of_priority = each.weight / total * priority_weight(each.priority) / priorities[each.tenant]
        shares[each.key] = of_priority * part
    return shares


def _place(work: UnsettledWork) -> tuple[int, str]:
    """Return the sort key of a batch among the batches of its tenant and priority.

    The batch with the lowest key sends its lines first.
    """
    return work.left, work.batch_id
