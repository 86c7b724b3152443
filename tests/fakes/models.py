"""Models, their rates and their changes at run time in memory, held to the same suite as PostgreSQL's."""

from collections.abc import Callable
from datetime import datetime

from batchwright.contracts.registry import ModelConfig
from batchwright.database.base import (
    ModelChangesTable,
    ModelsTable,
    RatesTable,
)
from batchwright.database.rows import (
    ModelChange,
    RateChange,
    ServedModel,
)
from tests.fakes.rows import Rows


class MemoryModels(ModelsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def note(self, backend_url: str, names: list[str], at: datetime) -> None:
        models = self._rows.enter().models
        for url, name in list(models):
            if url == backend_url and name not in names:
                del models[url, name]
        for name in names:
            models[backend_url, name] = ServedModel(name=name, backend_url=backend_url, seen_at=at)

    async def served(self, backend_urls: list[str]) -> list[ServedModel]:
        models = [model for model in self._rows.enter().models.values() if model.backend_url in backend_urls]
        return sorted(models, key=lambda model: (model.name, model.backend_url))


class MemoryRates(RatesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def all(self) -> list[RateChange]:
        return [row for _, row in sorted(self._rows.enter().rates.items())]

    async def change(
        self,
        model: str,
        requests_per_second: float | None,
        at: datetime,
        check: Callable[[list[RateChange]], None],
    ) -> list[RateChange]:
        rates = {name: row for name, row in self._rows.enter().rates.items() if name != model}
        if requests_per_second is not None:
            rates[model] = RateChange(model=model, requests_per_second=requests_per_second, changed_at=at)
        check([row for _, row in sorted(rates.items())])
        self._rows.rates = rates
        return await self.all()


class MemoryModelChanges(ModelChangesTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def all(self) -> list[ModelChange]:
        return [row for _, row in sorted(self._rows.enter().model_changes.items())]

    async def put(
        self,
        model: str,
        config: ModelConfig | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
    ) -> list[ModelChange]:
        row = ModelChange(model=model, config=config, changed_at=at)
        return await self._take({**self._rows.enter().model_changes, model: row}, check)

    async def revert(self, model: str, check: Callable[[list[ModelChange]], None]) -> list[ModelChange]:
        known = self._rows.enter().model_changes
        return await self._take({name: row for name, row in known.items() if name != model}, check)

    async def _take(
        self, changes: dict[str, ModelChange], check: Callable[[list[ModelChange]], None]
    ) -> list[ModelChange]:
        check([row for _, row in sorted(changes.items())])
        self._rows.model_changes = changes
        return await self.all()
