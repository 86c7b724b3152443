"""The table of models that were registered, changed or taken away at run time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from batchwright.contracts.registry import ModelConfig
from batchwright.database.base import ModelChangesTable
from batchwright.database.connection import Connections
from batchwright.database.driver import Session
from batchwright.database.rows import ModelChange
from batchwright.database.sql import queries

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelChangeQueries:
    all: str
    lock: str
    put: str
    revert: str


class ModelChanges(ModelChangesTable):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = queries(ModelChangeQueries, "model_changes")

    async def all(self) -> list[ModelChange]:
        async with self._connections.session() as session:
            return await self._all(session)

    async def put(
        self,
        model: str,
        config: ModelConfig | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
    ) -> list[ModelChange]:
        text = None if config is None else config.model_dump_json(exclude_defaults=True)
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock)
            await session.execute(self._sql.put, model, text, at)
            return await self._checked(session, check)

    async def revert(self, model: str, check: Callable[[list[ModelChange]], None]) -> list[ModelChange]:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock)
            await session.execute(self._sql.revert, model)
            return await self._checked(session, check)

    async def _checked(
        self, session: Session, check: Callable[[list[ModelChange]], None]
    ) -> list[ModelChange]:
        changes = await self._all(session)
        check(changes)
        return changes

    async def _all(self, session: Session) -> list[ModelChange]:
        found: list[ModelChange] = []
        for record in await session.fetch(self._sql.all):
            model, config, at = record["model"], record["config"], record["changed_at"]
            try:
                read = None if config is None else ModelConfig.model_validate_json(config)
            except ValidationError:  # of a newer version, during a rollout
                logger.warning("a change of a model cannot be read", extra={"model": model})
                continue
            found.append(ModelChange(model=model, config=read, changed_at=at))
        return found
