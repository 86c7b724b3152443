"""Fake tables of models, their rate limits and their changes at run time, in memory.

They pass the tests of the PostgreSQL tables.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from pydantic import JsonValue

from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange, RateChange, ServedModel
from batchwright.database.errors import VersionConflict
from batchwright.database.tables.models.model_changes import ModelChangesTable
from batchwright.database.tables.models.models import ModelsTable
from batchwright.database.tables.models.rates import RatesTable
from tests.fakes.tables.rows import Rows


class MemoryModels(ModelsTable):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def replace_models(self, backend_url: str, names: list[str], at: datetime) -> None:
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
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        self._rows.enter()
        return await self._put(model, config, at, check, expected)

    async def patch(
        self,
        model: str,
        merge: Callable[[ModelChange | None], ModelConfig | dict[str, JsonValue]],
        at: datetime,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        merged = merge(self._rows.enter().model_changes.get(model))
        if not merged:
            return await self.revert(model, check, expected)
        return await self._put(model, merged, at, check, expected)

    async def revert(
        self,
        model: str,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        known = self._rows.enter().model_changes
        self._expect(model, expected)
        return await self._take({name: row for name, row in known.items() if name != model}, check)

    async def _put(
        self,
        model: str,
        content: ModelConfig | dict[str, JsonValue] | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None,
    ) -> list[ModelChange]:
        self._expect(model, expected)
        self._rows.model_versions += 1
        config, patch = (None, content) if isinstance(content, dict) else (content, None)
        version = self._rows.model_versions
        row = ModelChange(model=model, config=config, patch=patch, changed_at=at, version=version)
        return await self._take({**self._rows.model_changes, model: row}, check)

    def _expect(self, model: str, expected: Sequence[int] | None) -> None:
        known = self._rows.model_changes.get(model)
        present = known.version if known else 0
        if expected is not None and present not in expected:
            raise VersionConflict(model, present)

    async def _take(
        self, changes: dict[str, ModelChange], check: Callable[[list[ModelChange]], None]
    ) -> list[ModelChange]:
        check([row for _, row in sorted(changes.items())])
        self._rows.model_changes = changes
        return await self.all()
