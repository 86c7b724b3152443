"""Models that nobody serves."""

from batchwright.inference.router import ModelRouter


class NoRouters:
    def router_for(self, model: str) -> ModelRouter | None:
        return None
