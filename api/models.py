"""/v1/models: what the backends serve."""

from fastapi import APIRouter, Response

from api.errors import ApiError
from api.objects import ModelObject, ModelPage, answer
from api.responses import errors
from api.services import Services


class ModelRoutes:
    def __init__(self, services: Services) -> None:
        self._models = services.models

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/models", tags=["Models"])
        router.add_api_route("", self.list, response_model=ModelPage)
        router.add_api_route("/{model:path}", self.get, response_model=ModelObject, responses=errors(404))
        return router

    async def list(self) -> Response:
        """List the models that some backend serves."""
        return answer(ModelPage(data=[ModelObject(id=name) for name in sorted(await self._models.served())]))

    async def get(self, model: str) -> Response:
        """Retrieve a model; its id may contain slashes."""
        if model not in await self._models.served():
            message = f"The model '{model}' does not exist or you do not have access to it."
            raise ApiError(404, message, code="model_not_found", param="model")
        return answer(ModelObject(id=model))
