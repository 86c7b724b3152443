"""Divide a limit that holds for all workers together between the workers."""

from collections.abc import Collection


def share_of(total: int, worker: str, workers: Collection[str]) -> int:
    """Return how much of the limit `total` one worker may use; 0 if the worker is not in `workers`.

    All workers get equal parts. If `total` cannot be divided equally, the first workers in the order of their
    ids get 1 more than the others. If all workers pass the same `workers`, the parts add up to `total`.

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
    """Return the share of one worker in a limit per minute that all workers use together.

    The workers in `users` divide the limit equally, and all other workers get 0. If `users` is empty, no
    worker uses the limit yet. Then each of the `live` workers gets an equal part.

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
