"""Finds the targets of operators' actions for the audit log. A target is the object that an action changes.
It can belong to any tenant, or to the whole installation.
"""

from collections.abc import Mapping

from fastapi import Request

from batchwright.api.audit_log.targets import BatchTarget, State, TargetKind, target_of_tenant
from batchwright.api.schemas.json_body import read_json_object, read_optional_object
from batchwright.contracts.api_objects.audit_log import AuditTargetType
from batchwright.contracts.terms import GroupKind, HoldKind
from batchwright.database.tables.operations.audit_log import AuditTarget
from batchwright.rules.tenants.api_keys import new_key_id
from batchwright.temporal import TemporalUnavailable


class OperatorBatchTarget(BatchTarget):
    """The audit log's target kind for actions that change a batch of any tenant."""

    async def find(self, request: Request) -> AuditTarget:
        id: str = request.path_params["batch_id"]
        try:
            owner = await self.rows.owner(id)
        except TemporalUnavailable:  # the request is recorded, and gets a 503
            owner = None
        return target_of_tenant(self.type, id, owner or "")


class DeadLetterTarget(TargetKind):
    type = AuditTargetType.DEAD_LETTER

    async def find(self, request: Request) -> AuditTarget:
        id: str = request.path_params["letter_id"]
        found = await self._database.dead_letters.get(id)
        return target_of_tenant(self.type, id, "" if found is None else found.tenant)

    async def read(self, target: AuditTarget) -> State | None:
        found = await self._database.dead_letters.get(target.id)
        return found and {
            "batch_id": found.batch_id,
            "model": found.dead_letter.model,
            "retried_as": found.retry and found.retry.batch_id,
        }


class DeadLettersTarget(TargetKind):
    """The audit log's target kind for actions that change several dead letters.

    Dead letters are lines that used up their attempts. An action changes all dead letters, the dead letters
    of one tenant, or the dead letters of one batch. The audit log does not show the state of these letters.
    """

    type = AuditTargetType.DEAD_LETTER

    async def find(self, request: Request) -> AuditTarget:
        fields = await read_optional_object(request)
        return target_of_tenant(self.type, _text(fields, "batch_id"), _text(fields, "tenant"))

    async def read(self, target: AuditTarget) -> State | None:
        return None


class QuotaTarget(TargetKind):
    type = AuditTargetType.QUOTA

    async def find(self, request: Request) -> AuditTarget:
        tenant = _text(await _parameters(request), "tenant")
        return target_of_tenant(self.type, tenant, tenant)

    async def read(self, target: AuditTarget) -> State | None:
        own = (await self._database.quotas.get(target.tenant)).model_dump(mode="json", exclude_none=True)
        if "models" in own:
            own["models"].sort()
        return own or None


class BudgetGroupTarget(TargetKind):
    type = AuditTargetType.BUDGET_GROUP

    async def find(self, request: Request) -> AuditTarget:
        kind, name = request.path_params["kind"], request.path_params["name"]
        return target_of_tenant(self.type, f"{kind}/{name}", _text(request.query_params, "tenant"))

    async def read(self, target: AuditTarget) -> State | None:
        kind, _, name = target.id.partition("/")
        if kind not in {*GroupKind}:
            return None
        for row in await self._database.budget_groups.all(GroupKind(kind), target.tenant or None):
            if (row.tenant, row.name) == (target.tenant, name):
                return row.model_dump(include={"tokens_per_day", "cost_per_day", "members"})
        return None


class KeyTarget(TargetKind):
    """The audit log's target kind for actions that change an API key of any tenant.

    The path of the request contains the key's id.
    """

    type = AuditTargetType.KEY

    async def find(self, request: Request) -> AuditTarget:
        id: str = request.path_params["key_id"]
        tenants = (row.tenant for row in await self._database.api_keys.all() if row.id == id)
        return target_of_tenant(self.type, id, next(tenants, ""))

    async def read(self, target: AuditTarget) -> State | None:
        rows = (row for row in await self._database.api_keys.all(target.tenant) if row.id == target.id)
        if (row := next(rows, None)) is None:
            return None
        return row.model_dump(mode="json", include={"scopes", "label", "expires_at", "revoked_at"})


class NewKeyTarget(KeyTarget):
    """The audit log's target kind for requests that create an API key.

    The audit log needs the key's id before the key exists. So `find` chooses the id, and the route creates
    the key with this id.
    """

    async def find(self, request: Request) -> AuditTarget:
        request.state.new_key_id = new_key_id()
        tenant = _text(await read_json_object(request), "tenant")
        return target_of_tenant(self.type, self.id_of(request), tenant)

    @staticmethod
    def id_of(request: Request) -> str:
        """Return the id that `find` has chosen for the API key that this request creates."""
        return str(request.state.new_key_id)


class RateTarget(TargetKind):
    """The audit log's target kind for actions that change a rate limit.

    The target's id is the name of the model. For the rate limit over all models, the target's id is empty.
    """

    type = AuditTargetType.RATE

    async def find(self, request: Request) -> AuditTarget:
        return target_of_tenant(self.type, _text(await _parameters(request), "model"), "")

    async def read(self, target: AuditTarget) -> State | None:
        for row in await self._database.rates.all():
            if row.model == target.id:
                return {"requests_per_second": row.requests_per_second}
        return None


class HoldTarget(TargetKind):
    """The audit log's target kind for actions that set or remove a hold.

    A hold is an operator's order to send no lines of a tenant or a model. The target's id is `tenant/NAME` or
    `model/NAME`.
    """

    type = AuditTargetType.HOLD

    async def find(self, request: Request) -> AuditTarget:
        fields = await _parameters(request)
        tenant, model = _text(fields, "tenant"), _text(fields, "model")
        kind = HoldKind.TENANT if tenant else HoldKind.MODEL
        return target_of_tenant(self.type, f"{kind}/{tenant or model}", tenant)

    async def read(self, target: AuditTarget) -> State | None:
        for hold in await self._database.holds.all():
            if f"{hold.kind}/{hold.name}" == target.id:
                return {"held_at": int(hold.held_at.timestamp())}
        return None


class ModelTarget(TargetKind):
    """The audit log's target kind for actions that change a model.

    The model's state contains only what operators have changed at run time. A model without such changes has
    no state.
    """

    type = AuditTargetType.MODEL

    async def find(self, request: Request) -> AuditTarget:
        return target_of_tenant(self.type, request.path_params["model"], "")

    async def read(self, target: AuditTarget) -> State | None:
        for row in await self._database.model_changes.all():
            if row.model != target.id:
                continue
            if row.is_removal:
                return {"version": row.version, "removed": True}
            if row.config is None:
                return {"version": row.version, "changed": row.patch}
            config = row.config.model_dump(mode="json", exclude_defaults=True)
            return {"version": row.version, "registered": config}
        return None


async def _parameters(request: Request) -> Mapping[str, object]:
    """Return the parameters of a request by name. They are in the query of a DELETE request, and in the body
    of any other request.
    """
    return request.query_params if request.method == "DELETE" else await read_json_object(request)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
