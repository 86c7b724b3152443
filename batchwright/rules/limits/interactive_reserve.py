"""Divide a limit between batches and interactive calls, whose clients wait for the answers."""

import math

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


def places_for_interactive_calls(mean: float, in_flight: int) -> int:
    """Return how many requests in flight at a backend are kept free for interactive calls.

    The number of interactive calls in flight varies around its mean, by about the square root of the mean.
    The mean and half of this root are kept free: 18 if the mean is 16. More is not necessary, because an
    interactive call that finds no free place waits only until the next line ends.

    If many more interactive calls than the mean are in flight now, the traffic has grown. Then the number of
    these calls minus the root is kept free.

    Args:
        mean: mean number of interactive calls in flight at the backend.
        in_flight: number of interactive calls in flight at the backend now.
    """
    spread = math.sqrt(mean)
    return round(max(mean + spread / 2, in_flight - spread))
