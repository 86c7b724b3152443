"""Table of changes that operators made to the model registry (the list of models and their backends).

The changes are made at run time: models are registered, changed or removed.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pydantic import JsonValue, ValidationError

from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.contracts.model_registry.stored_models import ModelChange
from batchwright.database.driver import Session
from batchwright.database.errors import VersionConflict
from batchwright.database.pool import ConnectionPool
from batchwright.database.sql import queries
from batchwright.rules.json_text import storable_json

logger = logging.getLogger(__name__)
Check = Callable[[list[ModelChange]], None]


class ModelChangesTable(Protocol):
    """Changes that operators made at run time to the model registry, the list of models and their backends.

    At most one change is stored for each model. The changes apply to all tenants.

    Each method that writes calls `check` with the list of changes as it will be after the write. If `check`
    raises an exception, nothing is written. Concurrent writes are applied one after the other.
    """

    async def all(self) -> list[ModelChange]: ...

    async def put(
        self,
        model: str,
        config: ModelConfig | None,
        at: datetime,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        """Store an operator's change of a model: `config` now has all settings of the model.

        If `config` is None, store that the model is removed. The new change replaces an earlier change of the
        model. Return the stored changes of all models.

        Args:
            check: called with the changes of all models before they are stored; raises an exception to reject
                them.
            expected: versions of the model that the caller accepts; None for any version. A model that was
                never changed has version 0.

        Raises VersionConflict if the current version of the model is not in `expected`.
        """
        ...

    async def patch(
        self,
        model: str,
        merge: Callable[[ModelChange | None], ModelConfig | dict[str, JsonValue]],
        at: datetime,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        """Replace or delete an operator's change of a model. Return the stored changes of all models.

        Args:
            merge: function that returns the new change. Its argument is the stored change of the model; None
                if there is none. The function returns a ModelConfig with all settings of the model, or a dict
                with only the settings to change. If the dict is empty, the stored change is deleted.
            check: called with the changes of all models before they are stored; raises an exception to reject
                them.
            expected: versions of the model that the caller accepts; None for any version.

        Raises VersionConflict if the current version of the model is not in `expected`.
        """
        ...

    async def revert(
        self,
        model: str,
        check: Callable[[list[ModelChange]], None],
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        """Delete an operator's change of a model. The model's settings in the registry file then apply again.

        Return the stored changes of all other models. Raises VersionConflict if the current version of the
        model is not in `expected`.
        """
        ...


@dataclass(frozen=True)
class ModelChangeQueries:
    all: str
    lock: str
    put: str
    revert: str
    version: str


class PostgresModelChanges(ModelChangesTable):
    def __init__(self, connections: ConnectionPool) -> None:
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
        check: Check,
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock)
            await self._put(session, model, config, at, expected)
            return await self._checked(session, check)

    async def patch(
        self,
        model: str,
        merge: Callable[[ModelChange | None], ModelConfig | dict[str, JsonValue]],
        at: datetime,
        check: Check,
        expected: Sequence[int] | None = None,
    ) -> list[ModelChange]:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock)
            changes = {row.model: row for row in await self._all(session)}
            merged = merge(changes.get(model))
            if merged:
                await self._put(session, model, merged, at, expected)
            else:
                await self._revert(session, model, expected)
            return await self._checked(session, check)

    async def revert(
        self, model: str, check: Check, expected: Sequence[int] | None = None
    ) -> list[ModelChange]:
        async with self._connections.transaction() as session:
            await session.execute(self._sql.lock)
            await self._revert(session, model, expected)
            return await self._checked(session, check)

    async def _put(
        self,
        session: Session,
        model: str,
        content: ModelConfig | dict[str, JsonValue] | None,
        at: datetime,
        expected: Sequence[int] | None,
    ) -> None:
        partial = isinstance(content, dict)
        text = None
        if content is not None:
            whole = isinstance(content, ModelConfig)
            text = content.model_dump_json(exclude_defaults=True) if whole else json.dumps(content)
            text = storable_json(text)
        if not await session.fetch(self._sql.put, model, text, partial, at, expected):
            raise VersionConflict(model, await self._version(session, model))

    async def _revert(self, session: Session, model: str, expected: Sequence[int] | None) -> None:
        deleted = await session.fetch(self._sql.revert, model, expected)
        if expected is None or deleted:
            return
        present = await self._version(session, model)
        if present not in expected:
            raise VersionConflict(model, present)

    async def _version(self, session: Session, model: str) -> int:
        rows = await session.fetch(self._sql.version, model)
        return rows[0]["version"] if rows else 0

    async def _checked(self, session: Session, check: Check) -> list[ModelChange]:
        changes = await self._all(session)
        check(changes)
        return changes

    async def _all(self, session: Session) -> list[ModelChange]:
        found: list[ModelChange] = []
        for record in await session.fetch(self._sql.all):
            row = dict(record.items())
            text, partial = row.pop("config"), row.pop("is_partial")
            try:
                if partial:
                    found.append(ModelChange(config=None, patch=json.loads(text), **row))
                else:
                    read = None if text is None else ModelConfig.model_validate_json(text)
                    found.append(ModelChange(config=read, **row))
            except ValidationError:  # written by a newer version during a rollout
                logger.warning("model change could not be read", extra={"model": row["model"]})
        return found
