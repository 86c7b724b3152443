"""The models that a new batch can use, with their prices and rate limits, as this process knows them."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from batchwright.contracts.errors import Failure
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.inference.limits.fleet_rate_limits import EffectiveRates
from batchwright.rules.deadline import Deadline
from batchwright.settings import Settings

_RETRY_DELAY = timedelta(seconds=5)


class CurrentModels(Protocol):
    async def served_now(self) -> frozenset[str]:
        """Return the names and aliases of all served models.

        This includes models that another process has just added.
        """
        ...

    def canonical(self, name: str) -> str:
        """Return the model for the alias `name`. If `name` is not an alias, return `name` itself."""
        ...

    def prices_of(self, model: str) -> PriceConfig | None:
        """Return the prices of a model; None if the model has no prices."""
        ...

    @property
    def accepts_any_model(self) -> bool:
        """True if at least one backend accepts model names that it does not list."""
        ...

    def accepts_unlisted(self, model: str) -> bool:
        """Return True if requests for this model may be sent although no backend lists the model."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The models that backends serve now, and their rate limits.

    Attributes:
        rates: the rate limits in effect. They decide how many lines slices have, and which task queue the
            slices of a model use.
    """

    current: CurrentModels
    rates: EffectiveRates

    async def names(self, settings: Settings, deadline: Deadline) -> frozenset[str] | None:
        """Return the names of the models that backends serve now, including aliases.

        Return None if the deadline has passed and no backend has reported its models. The caller must then
        accept every model.

        Raises:
            ApplicationError (DEFERRED): no backend has reported its models yet, and the deadline has not
                passed. The reason may be an outage, so the lines are not rejected.
        """
        served = await self.current.served_now()
        if served or self.current.accepts_any_model or not (settings.backends or settings.registry):
            return served
        if deadline.passed(time.time()):
            return None
        raise ApplicationError(
            "No backend has reported yet which models it serves.",
            type=Failure.DEFERRED,
            category=ApplicationErrorCategory.BENIGN,
            next_retry_delay=_RETRY_DELAY,
        )

    def prices(self, models: Iterable[str]) -> Mapping[str, PriceConfig]:
        """Return the current prices of these models. Models without prices are left out."""
        found = ((model, self.current.prices_of(model)) for model in models)
        return {model: prices for model, prices in found if prices is not None}
