"""Divide limits that hold for all processes together: between batches and calls, and between processes."""

import math
from collections.abc import Collection

_BATCH_FRACTION = 0.1  # fraction of a limit that interactive calls never take from batches


def left_to_batches(limit: int, interactive: float) -> int:
    """Return how much of a limit batches may use: what interactive calls do not use, but at least a tenth.

    An interactive call is a single request whose client waits for the answer. The tenth is rounded up.
    Example: of a limit of 100, batches may use 10 even if interactive calls use all 100.

    Args:
        limit: the whole limit, such as a number of permits or of requests per minute.
        interactive: how much of the limit interactive calls use now.
    """
    return max(limit - round(interactive), math.ceil(limit * _BATCH_FRACTION))


def interactive_share(per_minute: int, others: float, processes: int) -> float:
    """Return how much of a limit per minute one API process may use for interactive calls.

    An interactive call is a single request whose client waits for the answer. A tenth of the limit, rounded
    up, is left to batches. The rest, at least 1, is for the calls of all API processes. This process may use
    what the others do not use of the rest, but at least an equal part. Example: the limit is 100, so the rest
    is 90, and one other process uses 80 of it. This process may use 45, half of the rest, although only 10
    are left.

    If the limit is 1, calls and batches may each use 1, so together twice the limit. Otherwise one of the two
    could be blocked forever.

    Args:
        per_minute: the whole limit, in requests or tokens per minute.
        others: how much the interactive calls of all other API processes use, per minute.
        processes: number of the other API processes that use the limit.
    """
    most = max(per_minute - math.ceil(per_minute * _BATCH_FRACTION), 1)
    return max(most - others, most / (processes + 1))


def share_of(total: int, worker: str, workers: Collection[str]) -> int:
    """Return how much of the limit `total` one worker may use; 0 if the worker is not in `workers`.

    All workers get equal parts. If a remainder is left, the first workers in the order of their ids get one
    more. The parts add up to `total` if all workers have the same list of `workers`.

    Args:
        total: the limit of all workers together.
        worker: id of the one worker.
        workers: ids of all workers between which the limit is divided.
    """
    if worker not in workers:
        return 0
    part, rest = divmod(total, len(workers))
    return part + (sorted(workers).index(worker) < rest)


def share_of_rate(per_minute: int, worker: str, users: Collection[str], live: int) -> float:
    """Return how much of a limit per minute, which holds for all workers together, one worker may use.

    The workers in `users` divide the limit equally, and all other workers get 0. If `users` is empty, no
    worker uses the limit yet. Then each of the `live` workers may begin with an equal part.

    Args:
        per_minute: the limit of all workers together, in requests or tokens per minute.
        worker: id of the one worker.
        users: ids of the workers that are known to run slices to which the limit applies.
        live: number of live workers.
    """
    if not users:
        return per_minute / max(live, 1)
    if worker not in users:
        return 0.0
    if per_minute < len(users):
        return per_minute / len(users)
    return float(share_of(per_minute, worker, users))
