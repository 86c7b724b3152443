"""/admin/budget-groups: groups (organizations, teams and users) whose members share a budget; for
operators.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from batchwright.api.audit_log.operator_targets import BudgetGroupTarget
from batchwright.api.audit_log.recorder import AuditLog
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError, conflict, invalid_value, missing_parameter
from batchwright.api.openapi import error_responses, pattern_schema
from batchwright.api.schemas.budgets import (
    MAX_MEMBERS,
    NAME_PATTERN,
    TokensPerDay,
    checked_name,
    cost_per_day_of,
    text_list_of,
    tokens_per_day_of,
)
from batchwright.api.schemas.json_body import json_body_spec, read_json_object, reject_unknown
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.audit_log import AuditAction
from batchwright.contracts.api_objects.quotas import BudgetGroupList, BudgetGroupObject
from batchwright.contracts.model_registry.price_config import DecimalText
from batchwright.contracts.terms import GroupKind
from batchwright.database.errors import InOtherOrganization, UnknownBudgetGroup, UnknownTenant
from batchwright.database.tables.tenants.daily_usage import UsageOfDay
from batchwright.rules.tenants.quotas import BudgetGroup
from batchwright.rules.token_costs import amount_text

logger = logging.getLogger(__name__)


class BudgetGroupUpdate(BaseModel):
    """New values for a budget group. Fields that are missing stay unchanged.

    If `tokens_per_day` is `null` or 0, the daily budget of tokens is removed. If `cost_per_day` is `null` or
    0, the daily budget of cost is removed. `members` replaces the whole list of members. The members of an
    organization are tenants. The members of a team or user are ids of API keys.
    """

    tokens_per_day: TokensPerDay | None = None
    cost_per_day: DecimalText | None = Field(None, description="in the currency of the prices")
    members: list[str] = Field([], max_length=MAX_MEMBERS)


class DeletedBudgetGroup(BaseModel):
    object: Literal["budget_group"] = "budget_group"
    kind: GroupKind
    tenant: str | None
    name: str
    deleted: Literal[True] = True


_KIND_PATTERN = f"^({'|'.join(GroupKind)})$"
_Kind = Annotated[str, Path(), pattern_schema(_KIND_PATTERN)]
_Name = Annotated[str, Path(), pattern_schema(NAME_PATTERN)]
_TenantQuery = Annotated[
    str | None,
    Query(description="tenant of a team or user; absent for an organization"),
    pattern_schema(NAME_PATTERN),
]


class BudgetGroupRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._clock = deps.clock
        self._groups, self._api_keys = deps.database.budget_groups, deps.database.api_keys
        self._quotas, self._audit_log = deps.database.quotas, AuditLog(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/budget-groups", tags=["Operation"])
        one, update = "/{kind}/{name}", json_body_spec(BudgetGroupUpdate)
        router.add_api_route("", self.list, response_model=BudgetGroupList, responses=error_responses())
        router.add_api_route(one, self.get, response_model=BudgetGroupObject, responses=error_responses(404))
        router.add_api_route(
            one,
            self.put,
            methods=["PUT"],
            response_model=BudgetGroupObject,
            openapi_extra=update,
            responses=error_responses(404, 409),
            dependencies=self._audit_log.of_operator(AuditAction.BUDGET_GROUP_SET, BudgetGroupTarget),
        )
        router.add_api_route(
            one,
            self.delete,
            methods=["DELETE"],
            response_model=DeletedBudgetGroup,
            responses=error_responses(404),
            dependencies=self._audit_log.of_operator(AuditAction.BUDGET_GROUP_DELETE, BudgetGroupTarget),
        )
        return router

    async def list(
        self,
        kind: Annotated[str | None, Query(), pattern_schema(_KIND_PATTERN)] = None,
        tenant: Annotated[str | None, Query(), pattern_schema(NAME_PATTERN)] = None,
    ) -> Response:
        """List budget groups with today's usage, sorted by kind, tenant and name.

        The kind of a group is organization, team or user. With the parameter `kind`, only groups of this kind
        are listed. With the parameter `tenant`, only the teams and users of this tenant are listed.
        """
        only_kind = None if kind is None else _checked_kind(kind)
        only_tenant = None if tenant is None else checked_name(tenant, "tenant")
        return json_response(BudgetGroupList(data=[*await self._list(only_kind, only_tenant)]))

    async def get(self, kind: _Kind, name: _Name, tenant: _TenantQuery = None) -> Response:
        """Show a budget group with today's usage."""
        return json_response(await self._get(_checked_group(kind, tenant, name)))

    async def put(self, request: Request, kind: _Kind, name: _Name, tenant: _TenantQuery = None) -> Response:
        """Create a budget group, or change its budgets and its members."""
        group = _checked_group(kind, tenant, name)
        fields = await read_json_object(request)
        reject_unknown(fields, BudgetGroupUpdate.model_fields)
        tokens, cost = tokens_per_day_of(fields), cost_per_day_of(fields)
        members = await self._parse_members(group, fields)
        try:
            first_cost = None if cost == "0" else cost
            created = await self._groups.create(group, tokens, self._clock(), cost_per_day=first_cost)
            if not created:
                await self._groups.limit(
                    group,
                    tokens_per_day=(tokens or 0) if "tokens_per_day" in fields else None,
                    cost_per_day=(cost or "0") if "cost_per_day" in fields else None,
                )
            if "members" in fields:
                await self._groups.add(group, members, only=True)
        except UnknownTenant:
            message = f"No tenant found with name '{tenant}'; `batchwright tenants create` makes one."
            raise ApiError(404, message, param="tenant") from None
        except UnknownBudgetGroup:  # the group was deleted in the meantime
            raise _not_found(group) from None
        except InOtherOrganization as error:
            raise _tenant_taken(error.tenant, error.organization) from None
        extra = {**_log_fields(group), "is_new": created, "changed": ",".join(fields)}
        logger.info("budget group changed", extra=extra)
        return json_response(await self._get(group))

    async def delete(self, kind: _Kind, name: _Name, tenant: _TenantQuery = None) -> Response:
        """Delete a budget group. Its members are not deleted, and keep only their own budgets."""
        group = _checked_group(kind, tenant, name)
        try:
            await self._groups.delete(group)
        except UnknownBudgetGroup:
            raise _not_found(group) from None
        logger.info("budget group deleted", extra=_log_fields(group))
        return json_response(DeletedBudgetGroup(kind=group.kind, tenant=tenant, name=name))

    async def _parse_members(self, group: BudgetGroup, fields: Mapping[str, object]) -> Sequence[str]:
        """Check the field `members` of a request, and return its value.

        The members of an organization are tenants. The members of a team or user are ids of API keys.

        Raises:
            ApiError: a tenant's name is not valid, a tenant belongs to another organization, or a key does
                not exist.
        """
        members = text_list_of(fields, "members")
        if group.kind is GroupKind.ORGANIZATION:
            for at, name in enumerate(members):
                checked_name(name, f"members[{at}]")
            for row in await self._groups.all(group.kind):
                if row.name != group.name and (taken := sorted({*members}.intersection(row.members))):
                    raise _tenant_taken(taken[0], row.name)
        elif members:
            known = {row.id for row in await self._api_keys.all(group.tenant)}
            for at, key in enumerate(members):
                if key not in known:
                    reason = f"the tenant '{group.tenant}' has no key with that id"
                    raise invalid_value(f"members[{at}]", f"Invalid value for 'members[{at}]': {reason}.")
        return members

    async def _get(self, group: BudgetGroup) -> BudgetGroupObject:
        for found in await self._list(group.kind, group.tenant):
            if found.name == group.name:
                return found
        raise _not_found(group)

    async def _list(self, kind: GroupKind | None, tenant: str | None) -> Sequence[BudgetGroupObject]:
        today, rows = self._clock().astimezone(UTC).date(), await self._groups.all(kind, tenant)
        used = UsageOfDay(await self._quotas.daily_usage(today))
        return [
            BudgetGroupObject(
                tenant=row.tenant or None,
                tokens_used=used.of_group(row).tokens,
                cost_used=amount_text(used.of_group(row).cost),
                **row.model_dump(exclude={"tenant"}),
            )
            for row in rows
        ]


def _checked_kind(kind: str) -> GroupKind:
    if kind not in {*GroupKind}:
        kinds = ", ".join(f"'{known}'" for known in GroupKind)
        raise invalid_value("kind", f"Invalid value for 'kind': expected one of {kinds}.")
    return GroupKind(kind)


def _checked_group(kind: str, tenant: str | None, name: str) -> BudgetGroup:
    """Check the kind, the tenant and the name in the URL of a request, and return this budget group.

    Raises:
        ApiError: the kind or a name is not valid, a team or user has no tenant, or an organization has a
            tenant.
    """
    group_kind = _checked_kind(kind)
    checked_name(name, "name")
    if group_kind is GroupKind.ORGANIZATION:
        if tenant is not None:
            message = (
                "Invalid value for 'tenant': an organization belongs to no tenant; tenants are its members."
            )
            raise invalid_value("tenant", message)
        return BudgetGroup(group_kind, "", name)
    if tenant is None:
        raise missing_parameter("tenant")
    return BudgetGroup(group_kind, checked_name(tenant, "tenant"), name)


def _log_fields(group: BudgetGroup) -> dict[str, object]:
    return {"kind": group.kind, "of_tenant": group.tenant, "group": group.name}


def _not_found(group: BudgetGroup) -> ApiError:
    if group.tenant:
        message = (
            f"The tenant '{group.tenant}' has no {group.kind} with name '{group.name}'; a PUT makes one."
        )
    else:
        message = f"No {group.kind} found with name '{group.name}'; a PUT makes one."
    return ApiError(404, message, param="name")


def _tenant_taken(tenant: str, organization: str) -> ApiError:
    message = (
        f"The tenant '{tenant}' is in the organization '{organization}', and can be in one only: take "
        "it out there first."
    )
    return conflict(message, param="members")
