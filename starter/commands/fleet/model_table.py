"""Shows all models with their backends and task queues, for `batchwright models` without a subcommand.

The models are read from the database and the settings, without the API.
"""

from datetime import datetime
from functools import partial

from pydantic import BaseModel

from batchwright.contracts.model_registry.registry_config import ModelSource
from batchwright.contracts.temporal_names import inference_queue
from batchwright.database.database import Database
from batchwright.inference.registry.model_catalog import Catalog
from batchwright.rules.ids import safe_name
from batchwright.settings import Settings
from batchwright.starter.diagnostics.connections import run_or_stop, with_database
from batchwright.starter.options import settings_or_stop
from batchwright.starter.output import column_table, escaped, print_json, stderr, stdout


class ModelOutput(BaseModel):
    """A model with its backends and its task queue.

    If the model comes from a backend's list of models, `seen_at` is the time at which a backend last listed
    the model. If the model comes from the registry file or a change at run time, `seen_at` is null.
    """

    model: str
    backends: list[str]
    queue: str
    seen_at: datetime | None
    source: ModelSource


class ModelsOutput(BaseModel):
    models: list[ModelOutput]


def show_models(json: bool) -> None:
    """Print all models with their backends and task queues. This is the command `batchwright models`."""
    settings = settings_or_stop()
    found = run_or_stop(with_database(settings, partial(_models, settings)))
    if json:
        return print_json(ModelsOutput(models=found))
    if not found:
        stderr().print(
            "No model is registered, and no backend has listed one yet; `batchwright doctor` checks them."
        )
        return
    table = column_table("model", "backend", "queue")
    for model in found:
        table.add_row(*map(escaped, (model.model, "\n".join(model.backends), model.queue)))
    stdout().print(table)


async def _models(settings: Settings, database: Database) -> list[ModelOutput]:
    return [
        ModelOutput(
            model=entry.model,
            backends=[backend.url for backend in entry.config.backends],
            queue=inference_queue(safe_name(entry.model)),
            seen_at=entry.seen_at,
            source=entry.source,
        )
        for entry in await Catalog(settings).read(database)
    ]
