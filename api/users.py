"""/admin/users: API keys of a tenant that share one budget of tokens. An operator's, not a tenant's."""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from api.bodies import json_body, read_object, refuse_unknown
from api.budgets import MOST_IN_ONE, NAME, Budget, budget_of, checked_name, texts_of
from api.errors import ApiError, invalid_value
from api.objects import answer
from api.parameters import pattern_schema
from api.responses import errors
from api.services import Services
from batchwright.database.errors import UnknownTenant
from batchwright.database.spent import spent_by_users

logger = logging.getLogger(__name__)


class UserObject(BaseModel):
    object: Literal["user"] = "user"
    tenant: str
    name: str
    tokens_per_day: int | None = Field(description="its budget; null: none")
    tokens_used: int = Field(description="of today in UTC, of all its keys")
    keys: list[str] = Field(description="their ids")
    created_at: datetime


class UserList(BaseModel):
    object: Literal["list"] = "list"
    data: list[UserObject]


class UserUpdate(BaseModel):
    """What is not named stays as it is. A budget of null or 0: none. `keys` are the ids of all its keys."""

    tokens_per_day: Budget | None = None
    keys: list[str] = Field([], max_length=MOST_IN_ONE)


class DeletedUser(BaseModel):
    object: Literal["user"] = "user"
    tenant: str
    name: str
    deleted: Literal[True] = True


_Name = Annotated[str, Path(), pattern_schema(NAME)]


class UserRoutes:
    def __init__(self, services: Services) -> None:
        self._clock = services.clock
        self._users, self._api_keys = services.database.users, services.database.api_keys
        self._quotas = services.database.quotas

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/admin/users", tags=["Operation"])
        one, update = "/{tenant}/{name}", json_body(UserUpdate)
        router.add_api_route("", self.list, response_model=UserList, responses=errors())
        router.add_api_route(one, self.get, response_model=UserObject, responses=errors(404))
        router.add_api_route(
            one,
            self.put,
            methods=["PUT"],
            response_model=UserObject,
            openapi_extra=update,
            responses=errors(404),
        )
        router.add_api_route(
            one, self.delete, methods=["DELETE"], response_model=DeletedUser, responses=errors(404)
        )
        return router

    async def list(self, tenant: Annotated[str | None, Query(), pattern_schema(NAME)] = None) -> Response:
        """Users by tenant and name, with what they have used today; of one tenant, or of all."""
        of = None if tenant is None else checked_name(tenant, "tenant")
        return answer(UserList(data=[*await self._all(of)]))

    async def get(self, tenant: _Name, name: _Name) -> Response:
        """A user, with what it has used today."""
        _check(tenant, name)
        return answer(await self._found(tenant, name))

    async def put(self, request: Request, tenant: _Name, name: _Name) -> Response:
        """Make a user, or change its budget and its keys."""
        _check(tenant, name)
        fields = await read_object(request)
        refuse_unknown(fields, UserUpdate.model_fields)
        budget, keys = budget_of(fields), await self._keys(tenant, fields)
        made = await self._make(tenant, name, budget)
        if not made and "tokens_per_day" in fields:
            await self._users.limit(tenant, name, budget)
        if "keys" in fields:
            await self._users.own(tenant, name, keys)
        extra = {"of_tenant": tenant, "user": name, "is_new": made, "changed": ",".join(fields)}
        logger.info("a user was changed", extra=extra)
        return answer(await self._found(tenant, name))

    async def delete(self, tenant: _Name, name: _Name) -> Response:
        """Delete a user; its keys stay, and have their own budgets alone."""
        _check(tenant, name)
        if not await self._users.delete(tenant, name):
            raise _unknown(tenant, name)
        logger.info("a user was deleted", extra={"of_tenant": tenant, "user": name})
        return answer(DeletedUser(tenant=tenant, name=name))

    async def _make(self, tenant: str, name: str, budget: int | None) -> bool:
        try:
            return await self._users.create(tenant, name, budget, self._clock())
        except UnknownTenant:
            message = f"No tenant found with name '{tenant}'; `batchwright tenants create` makes one."
            raise ApiError(404, message, param="tenant") from None

    async def _keys(self, tenant: str, fields: Mapping[str, object]) -> Sequence[str]:
        """Before anything is changed. Raises ApiError for what is no key of the tenant."""
        named = texts_of(fields, "keys")
        known = {row.id for row in await self._api_keys.all(tenant)} if named else set[str]()
        for at, key in enumerate(named):
            if key not in known:
                message = f"Invalid value for 'keys[{at}]': the tenant '{tenant}' has no key with that id."
                raise invalid_value(f"keys[{at}]", message)
        return named

    async def _found(self, tenant: str, name: str) -> UserObject:
        for user in await self._all(tenant):
            if user.name == name:
                return user
        raise _unknown(tenant, name)

    async def _all(self, tenant: str | None) -> Sequence[UserObject]:
        today, rows = self._clock().astimezone(UTC).date(), await self._users.all(tenant)
        return [
            UserObject(tokens_used=used, **row.model_dump())
            for row, used in await spent_by_users(self._quotas, rows, today)
        ]


def _check(tenant: str, name: str) -> None:
    checked_name(tenant, "tenant")
    checked_name(name, "name")


def _unknown(tenant: str, name: str) -> ApiError:
    message = f"The tenant '{tenant}' has no user with name '{name}'; a PUT makes one."
    return ApiError(404, message, param="name")
