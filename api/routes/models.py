"""/v1/models: the models that backends serve and that the tenant may use."""

from fastapi import APIRouter, Request, Response

from batchwright.api.auth.caller import tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import ApiError
from batchwright.api.openapi import error_responses
from batchwright.api.schemas.openai_objects import json_response
from batchwright.contracts.api_objects.openai import ModelObject, ModelPage


class ModelRoutes:
    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/models", tags=["Models"])
        router.add_api_route("", self.list, response_model=ModelPage)
        router.add_api_route(
            "/{model:path}", self.get, response_model=ModelObject, responses=error_responses(404)
        )
        return router

    async def list(self, request: Request) -> Response:
        """List the models that backends serve and that you may use."""
        return json_response(
            ModelPage(data=[ModelObject(id=name) for name in sorted(await self._usable(request))])
        )

    async def get(self, request: Request, model: str) -> Response:
        """Retrieve a model. Its id may contain slashes."""
        if model not in await self._usable(request):
            message = f"The model '{model}' does not exist or you do not have access to it."
            raise ApiError(404, message, code="model_not_found", param="model")
        return json_response(ModelObject(id=model))

    async def _usable(self, request: Request) -> frozenset[str]:
        own = await self._deps.database.quotas.get(tenant_of(request, self._deps.settings))
        return frozenset(name for name in await self._deps.models.served() if own.may_use(name))
