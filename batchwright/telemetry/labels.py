"""Limits the number of different label values, so that the number of metric series stays small."""

from collections.abc import Collection, Mapping

OTHER = "other"
MODEL_LABELS = ("model", "from_model", "to_model")


class BoundedLabel:
    """A callable that limits the number of different values of a metric's label.

    It returns the first `limit` different values unchanged, and `other` for all others. The result for a
    value never changes while the process runs. So the result can label a counter, which must never decrease.
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
    """A callable that returns a model's value of the metric label `model`.

    - Each listed model has its own value. The operator or a backend has listed these models in the registry.
    - At most `limit` unlisted models have their own values at the same time.
    - All other models share the value `other`.

    All metrics of the process use the same ModelLabels object.
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
        """Names of the unlisted models that have their own label values now.

        Neither the operator nor a backend has listed these models in the registry.
        """
        return frozenset(self._unlisted)

    def set_listed(self, models: Collection[str]) -> None:
        """Set the models that the operator or a backend has listed. Each of them gets its own value."""
        self._listed = frozenset(models)
        self._unlisted -= self._listed

    def release(self, model: str) -> None:
        """Free the label value of an unlisted model, so that another unlisted model can get its own value.

        Neither the operator nor a backend has listed an unlisted model in the registry.
        """
        self._unlisted.discard(model)


def top_names(weights: Mapping[str, float], limit: int) -> frozenset[str]:
    """Return the `limit` names with the greatest weights.

    If the weights change, names can disappear from the result. So use them only as labels of a gauge, and
    replace all values of the gauge at every refresh.
    """
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return frozenset(ranked[:limit])
