"""Decide if a line can run: a backend must serve its model, and the tenant must be allowed to use it."""

from collections.abc import Callable
from typing import NamedTuple

from batchwright.contracts.errors import LineCode
from batchwright.database.tables.tenants.quota_records import TenantQuotas
from batchwright.rules.ids import is_model_name
from batchwright.rules.json_text import storable

_MAX_DISPLAY_NAME = 256


class ModelAccess(NamedTuple):
    """The rules that decide which models the lines of a batch may use.

    They are created once per batch, when its input is read.

    Attributes:
        served: models that backends have reported. If it is None, no backend has reported any, and every
            valid model name is accepted.
        accepts_unlisted: returns True if a backend accepts a model that is not in `served`.
    """

    served: frozenset[str] | None
    quotas: TenantQuotas
    accepts_unlisted: Callable[[str], bool]

    def rejection_code(self, model: str) -> LineCode | None:
        """Return the error code for lines of this model if they cannot run; None if they can run.

        The tenant's permission is checked before the existence of the model. So a tenant cannot find out
        whether a forbidden model exists.

        Args:
            model: name of the model. It is empty if the line names no model and there is no default model.
        """
        if model and not self.quotas.may_use(model):
            return LineCode.POLICY_REJECTED
        if self.served is None:
            can_be_served = is_model_name(model)
        else:
            can_be_served = model in self.served or self.accepts_unlisted(model)
        return None if can_be_served else LineCode.MODEL_NOT_FOUND


def display_name(model: str) -> str:
    """Return the model's name as it is shown in messages, and in the counts of a batch's lines by model.

    The name is cut to 256 characters, and characters that the database cannot store are replaced.
    """
    return storable(model[:_MAX_DISPLAY_NAME])


def model_not_allowed(model: str) -> str:
    """Return the error message for a line whose model the tenant may not use."""
    return f"You may not use the model '{display_name(model)}'."


def model_not_served(model: str) -> str:
    shown = display_name(model)
    return f"The model '{shown}' is not served by any backend; GET /v1/models lists those that are."
