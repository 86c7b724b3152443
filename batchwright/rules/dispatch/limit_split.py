"""Division of a fleet-wide limit between the workers of the fleet."""

from collections.abc import Collection


def share_of(total: int, worker: str, workers: Collection[str]) -> int:
    """Return the part of the limit `total` that one worker may use; 0 if it is not one of `workers`.

    All workers get equal parts. If a remainder is left, the first workers in the order of their ids get one
    more. The parts add up to `total` if all workers have the same list of `workers`.
    """
    if worker not in workers:
        return 0
    part, rest = divmod(total, len(workers))
    return part + (sorted(workers).index(worker) < rest)


def share_of_rate(per_minute: int, worker: str, users: Collection[str], live: int) -> float:
    """Return the part of a fleet-wide rate per minute that one worker may use.

    The workers in `users` divide the rate equally, and all other workers get 0. So a new worker gets a part
    as soon as `users` contains it. If `users` is empty, each live worker may begin with an equal part.

    Args:
        per_minute: rate of the whole fleet.
        worker: id of this worker.
        users: ids of the workers that are known to run slices to which the rate applies.
        live: number of live workers.
    """
    if not users:
        return per_minute / max(live, 1)
    if worker not in users:
        return 0.0
    if per_minute < len(users):
        return per_minute / len(users)
    return float(share_of(per_minute, worker, users))
