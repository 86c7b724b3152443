"""The options of the worker that runs workflows."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchwright.settings import load
from batchwright.telemetry.metrics import Metrics
from batchwright.worker import wiring


def test_a_workflow_waits_five_seconds_at_most_for_the_worker_that_has_it_in_its_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This worker may have been killed."""
    options: dict[str, object] = {}
    monkeypatch.setattr(wiring, "Worker", lambda _client, **given: options.update(given))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    resources = SimpleNamespace(
        settings=load(), metrics=Metrics(), database=None, storage=None, temporal=None
    )
    wiring.build_control_worker(cast(Any, resources))
    wait = options["sticky_queue_schedule_to_start_timeout"]
    assert isinstance(wait, timedelta)
    assert wait <= timedelta(seconds=5)
