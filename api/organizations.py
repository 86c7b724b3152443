"""/admin/organizations: tenants that share one budget of tokens. An operator's, not a tenant's."""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from api.bodies import json_body, read_object, refuse_unknown
from api.budgets import MOST_IN_ONE, NAME, Budget, budget_of, checked_name, texts_of
from api.errors import ApiError, conflict
from api.objects import answer
from api.parameters import pattern_schema
from api.responses import errors
from api.services import Services
from batchwright.database.spent import spent_by_organizations

logger = logging.getLogger(__name__)


class OrganizationObject(BaseModel):
    object: Literal["organization"] = "organization"
    name: str
    tokens_per_day: int | None = Field(description="its budget; null: none")
    tokens_used: int = Field(description="of today in UTC, of all its tenants")
    tenants: list[str]
    created_at: datetime


class OrganizationList(BaseModel):
    object: Literal["list"] = "list"
    data: list[OrganizationObject]


class OrganizationUpdate(BaseModel):
    """What is not named stays as it is. A budget of null or 0: none. `tenants` are all that are in it."""

    tokens_per_day: Budget | None = None
    tenants: list[Annotated[str, Field(pattern=NAME)]] = Field([], max_length=MOST_IN_ONE)


class DeletedOrganization(BaseModel):
    object: Literal["organization"] = "organization"
    name: str
    deleted: Literal[True] = True


_Name = Annotated[str, Path(), pattern_schema(NAME)]


class OrganizationRoutes:
    def __init__(self, services: Services) -> None:
        self._clock = services.clock
        self._organizations, self._quotas = services.database.organizations, services.database.quotas

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/organizations", tags=["Operation"])
        one, update = "/{name}", json_body(OrganizationUpdate)
        router.add_api_route("", self.list, response_model=OrganizationList)
        router.add_api_route(one, self.get, response_model=OrganizationObject, responses=errors(404))
        router.add_api_route(
            one,
            self.put,
            methods=["PUT"],
            response_model=OrganizationObject,
            openapi_extra=update,
            responses=errors(404, 409),
        )
        router.add_api_route(
            one, self.delete, methods=["DELETE"], response_model=DeletedOrganization, responses=errors(404)
        )
        return router

    async def list(self) -> Response:
        """Organizations by name, with what they have used today."""
        return answer(OrganizationList(data=[*(await self._all()).values()]))

    async def get(self, name: _Name) -> Response:
        """An organization, with what it has used today."""
        return answer(await self._found(checked_name(name, "name")))

    async def put(self, request: Request, name: _Name) -> Response:
        """Make an organization, or change its budget and its tenants."""
        checked_name(name, "name")
        fields = await read_object(request)
        refuse_unknown(fields, OrganizationUpdate.model_fields)
        budget, tenants = budget_of(fields), _tenants(fields)
        await self._check_free(name, tenants)
        made = await self._organizations.create(name, budget, self._clock())
        if not made and "tokens_per_day" in fields:
            await self._organizations.limit(name, budget)
        if "tenants" in fields:
            await self._seat(name, tenants)
        extra = {"organization": name, "is_new": made, "changed": ",".join(fields)}
        logger.info("an organization was changed", extra=extra)
        return answer(await self._found(name))

    async def delete(self, name: _Name) -> Response:
        """Delete an organization; its tenants stay, and have their own budgets alone."""
        if not await self._organizations.delete(checked_name(name, "name")):
            raise _unknown(name)
        logger.info("an organization was deleted", extra={"organization": name})
        return answer(DeletedOrganization(name=name))

    async def _check_free(self, name: str, tenants: Sequence[str]) -> None:
        """Before anything is changed. Raises ApiError for a tenant that is in another organization."""
        for row in await self._quotas.organizations():
            if row.name != name and (taken := sorted({*tenants}.intersection(row.tenants))):
                raise _taken(taken[0], row.name)

    async def _seat(self, name: str, tenants: Sequence[str]) -> None:
        """Those that leave go first, so that they are free for others however this ends."""
        before = (await self._found(name)).tenants
        for tenant in sorted({*before}.difference(tenants)):
            await self._organizations.remove(name, tenant)
        for tenant in tenants:
            place = await self._organizations.add(name, tenant)
            if place is None:
                raise _unknown(name)  # deleted meanwhile
            if place != name:
                raise _taken(tenant, place)

    async def _found(self, name: str) -> OrganizationObject:
        found = (await self._all()).get(name)
        if found is None:
            raise _unknown(name)
        return found

    async def _all(self) -> dict[str, OrganizationObject]:
        today = self._clock().astimezone(UTC).date()
        return {
            row.name: OrganizationObject(tokens_used=used, **row.model_dump())
            for row, used in await spent_by_organizations(self._quotas, today)
        }


def _unknown(name: str) -> ApiError:
    return ApiError(404, f"No organization found with name '{name}'; a PUT makes one.", param="name")


def _taken(tenant: str, place: str) -> ApiError:
    message = (
        f"The tenant '{tenant}' is in the organization '{place}', and can be in one only: take it out there "
        "first."
    )
    return conflict(message, param="tenants")


def _tenants(fields: Mapping[str, object]) -> Sequence[str]:
    return [checked_name(name, f"tenants[{at}]") for at, name in enumerate(texts_of(fields, "tenants"))]
