"""Divide a limit that holds for all workers together between the workers."""

from collections.abc import Collection


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
