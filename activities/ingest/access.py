"""Which lines can run at all: by the models that are served, and those the tenant may use."""

from typing import NamedTuple

from batchwright.contracts.errors import LineCode
from batchwright.database.quotas_base import OwnQuotas

_SHOWN_NAME = 256


class Access(NamedTuple):
    """At the moment of an ingestion. `served` is None where no backend has told: then any model may be."""

    served: frozenset[str] | None
    own: OwnQuotas

    def refusal(self, model: str) -> LineCode | None:
        """Why a line of this model is not planned; empty: it names none, and there is no default.

        What the tenant may not use is refused first: nothing is told of whether it is served.
        """
        if model and not self.own.may_use(model):
            return LineCode.POLICY_REJECTED
        may_be_served = bool(model) if self.served is None else model in self.served
        return None if may_be_served else LineCode.MODEL_NOT_FOUND


def not_allowed(model: str) -> str:
    """The message of a line that is rejected for its model."""
    return f"You may not use the model '{model[:_SHOWN_NAME]}'."


def not_served(model: str) -> str:
    shown = model[:_SHOWN_NAME]
    return f"The model '{shown}' is not served by any backend; GET /v1/models lists those that are."
