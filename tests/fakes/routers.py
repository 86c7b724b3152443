"""The routers of a worker whose backends serve no model."""

from batchwright.inference.router import ModelRouter


class NoRouters:
    def router_for(self, model: str) -> ModelRouter | None:
        return None
