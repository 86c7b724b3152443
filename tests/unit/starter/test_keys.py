"""`batchwright keys list`: its message if there are no keys."""

import pytest
from typer.testing import CliRunner

from batchwright.starter.__main__ import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "There is no key; `batchwright keys create TENANT` creates one.\n"),
        (["acme"], "Tenant 'acme' has no key; `batchwright keys create acme` creates one.\n"),
    ],
    ids=["of all", "of a tenant"],
)
def test_without_keys_the_list_says_how_to_make_one(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: object) -> tuple[list[object], dict[str, int]]:
        return [], {}

    monkeypatch.setattr("batchwright.starter.commands.tenants.keys.query_or_stop", none)
    ended = CliRunner().invoke(app, ["keys", "list", *arguments])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "", message)
