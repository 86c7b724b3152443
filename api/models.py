"""/v1/models: what the backends serve, and the tenant may use."""

from fastapi import APIRouter, Request, Response

from api.errors import ApiError
from api.objects import ModelObject, ModelPage, answer
from api.responses import errors
from api.services import Services
from api.tenants import tenant_of


class ModelRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/models", tags=["Models"])
        router.add_api_route("", self.list, response_model=ModelPage)
        router.add_api_route("/{model:path}", self.get, response_model=ModelObject, responses=errors(404))
        return router

    async def list(self, request: Request) -> Response:
        """List the models that some backend serves and you may use."""
        return answer(ModelPage(data=[ModelObject(id=name) for name in sorted(await self._usable(request))]))

    async def get(self, request: Request, model: str) -> Response:
        """Retrieve a model; its id may contain slashes."""
        if model not in await self._usable(request):
            message = f"The model '{model}' does not exist or you do not have access to it."
            raise ApiError(404, message, code="model_not_found", param="model")
        return answer(ModelObject(id=model))

    async def _usable(self, request: Request) -> frozenset[str]:
        own = await self._services.database.quotas.get(tenant_of(request, self._services.settings))
        return frozenset(name for name in await self._services.models.served() if own.may_use(name))
