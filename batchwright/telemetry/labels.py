"""Limits the number of different label values, so that the number of metric series stays small."""

from collections.abc import Collection, Mapping

OTHER = "other"
MODEL_LABELS = ("model", "from_model", "to_model")


class BoundedLabel:
    """Callable that returns the label for a value.

    Each of the first `limit` values gets its own label. All other values get the label `other`. A value keeps
    its label as long as the process runs. Use this for counters, because a counter must never decrease.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self.limit:
            return OTHER
        self._known.add(value)
        return value


class ModelLabels:
    """Callable that returns the label for a model name, for all metrics of the process.

    Each model in the registry has its own label. At most `limit` other models have their own label at the
    same time. All remaining models share the label `other`.
    """

    def __init__(self, limit: int) -> None:
        self.required: frozenset[str] = frozenset()  # models with lines left, if this process knows them
        self._limit = limit
        self._listed: frozenset[str] = frozenset()
        self._unlisted: set[str] = set()

    def __call__(self, model: str) -> str:
        if not model or model == OTHER or model in self._listed or model in self._unlisted:
            return model
        if len(self._unlisted) >= self._limit:
            return OTHER
        self._unlisted.add(model)
        return model

    @property
    def unlisted(self) -> frozenset[str]:
        """Models that have their own label now but are not in the registry."""
        return frozenset(self._unlisted)

    def set_listed(self, models: Collection[str]) -> None:
        """Set the names of the models in the registry, so that each has its own label."""
        self._listed = frozenset(models)
        self._unlisted -= self._listed

    def release(self, model: str) -> None:
        """Free the label of a model that is not in the registry, so that another model can get one."""
        self._unlisted.discard(model)


def top_names(weights: Mapping[str, float], limit: int) -> frozenset[str]:
    """Return the `limit` names with the greatest weights.

    If the weights change, the result can contain other names. Therefore use it only for gauges whose series
    are all replaced at each refresh.
    """
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return frozenset(ranked[:limit])
