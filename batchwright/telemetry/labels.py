"""Limits the number of different label values, so that the number of metric series stays small."""

from collections.abc import Collection, Mapping

OTHER = "other"
MODEL_LABELS = ("model", "from_model", "to_model")


class BoundedLabel:
    """A callable that returns the metric label for a value, and limits the number of labels.

    Each of the first `limit` values gets its own label. All other values get the label `other`. A value keeps
    its label as long as the process runs, so the labels can be used for counters, which must never decrease.
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
    """A callable that returns the value of a metric's label `model` for a model name.

    Each model in the registry (the models that the operator or a backend has listed) has its own label value.
    At most `limit` other models have their own value at the same time. All remaining models share the value
    `other`. All metrics of the process use the same object.
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
        """Names of the models that have their own label value now, although they are not in the registry.

        The registry has the models that the operator or a backend has listed.
        """
        return frozenset(self._unlisted)

    def set_listed(self, models: Collection[str]) -> None:
        """Set the names of the models that the operator or a backend has listed. Each gets its own label
        value.
        """
        self._listed = frozenset(models)
        self._unlisted -= self._listed

    def release(self, model: str) -> None:
        """Free the label value of a model that is not in the registry, so that another model can get one.

        The registry has the models that the operator or a backend has listed.
        """
        self._unlisted.discard(model)


def top_names(weights: Mapping[str, float], limit: int) -> frozenset[str]:
    """Return the `limit` names with the greatest weights.

    The names change when the weights change. So use them only as labels of a gauge, and replace all values of
    the gauge at every refresh.
    """
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return frozenset(ranked[:limit])
