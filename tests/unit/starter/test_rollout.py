"""`batchwright rollout`: output if Temporal knows no build."""

from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from typer.testing import CliRunner

from batchwright.starter.__main__ import app
from batchwright.temporal.rollout import Build, list_builds


class Refusing:
    """A client whose server answers NOT_FOUND with the message `words`."""

    namespace = "nope"

    def __init__(self, words: str) -> None:
        self._words = words

    @property
    def workflow_service(self) -> "Refusing":
        return self

    async def describe_worker_deployment(self, *_: Any, **__: Any) -> None:
        raise RPCError(self._words, RPCStatusCode.NOT_FOUND, b"")


async def test_a_deployment_without_workers_has_no_builds() -> None:
    client = cast(Client, Refusing("Worker Deployment not found"))
    assert await list_builds(client, "batches") == []


async def test_a_missing_namespace_is_not_shown_as_an_empty_deployment() -> None:
    client = cast(Client, Refusing("Namespace nope is not found."))
    with pytest.raises(RPCError, match="nope"):
        await list_builds(client, "batches")


def test_show_names_a_deployment_of_which_no_worker_has_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> list[Build]:
        return []

    monkeypatch.setattr("batchwright.starter.commands.operations.rollout._call_temporal", none)
    ended = CliRunner().invoke(app, ["rollout", "show", "--deployment", "elsewhere"])
    assert ended.exit_code == 0
    assert ended.stdout == ""
    assert "'elsewhere'" in ended.stderr
