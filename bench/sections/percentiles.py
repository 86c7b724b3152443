"""How long all but the slowest took."""


def percentile(values: list[float], share: float) -> float:
    """The least value that is not below `share` of them, 0 to 1."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
